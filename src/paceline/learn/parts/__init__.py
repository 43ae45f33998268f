"""Parts of the course: predictions, findings and questions of each."""
