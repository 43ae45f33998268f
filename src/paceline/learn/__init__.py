"""Interactive course: pure lessons over facts that are read from runs. The text: docs/learn/index.md."""
