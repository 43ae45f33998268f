"""How a run's record gets to where people already look: TensorBoard, MLflow, W&B."""
