"""What do several ways of training one model cost, measured alike? Other people's ways beside ours."""
