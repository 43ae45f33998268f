"""Is what was wished for already there? A server adds fields and defaults, and leaves out what is empty."""

from paceline.kube.words import read_quantity


def is_part_of(wanted: object, found: object) -> bool:
    if found is None and wanted in ({}, []):
        return True  # `egress: []` does not come back
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(
            is_part_of(value, found.get(key)) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(wanted) == len(found)
            and all(is_part_of(mine, its) for mine, its in zip(wanted, found, strict=True))
        )
    if wanted == found:
        return True
    amount = read_quantity(wanted)  # 1024Mi comes back as 1Gi
    return amount is not None and amount == read_quantity(found)
