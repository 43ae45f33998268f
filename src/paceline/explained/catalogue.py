"""Which errors are there? Every code with what it means; a code is never given to another kind later."""

from paceline.explained import clusters, coordinator, data, images, machine, runs, settings, training
from paceline.explained.row import Row

CATALOGUE: dict[str, Row] = {
    row.code: row
    for part in (settings, machine, runs, training, coordinator, clusters, images, data)
    for row in part.ROWS
}
