"""Export of a run's metrics to experiment trackers: TensorBoard, MLflow, W&B."""
