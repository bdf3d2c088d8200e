"""What a run recorded, for other tools: MLflow, Prometheus, OpenTelemetry. TensorBoard's is watch/tensorboard.py."""
