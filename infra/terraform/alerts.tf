# Whom a failed build is told to. Pull requests have their status on GitHub.

resource "aws_sns_topic" "failed" {
  count = var.alerts ? 1 : 0

  name = "${var.name}-failed-builds"
  tags = local.tags
}

resource "aws_sns_topic_policy" "failed" {
  count = var.alerts ? 1 : 0

  arn = aws_sns_topic.failed[0].arn
  # No condition: EventBridge sends none of the keys that it could ask for, and every message would be dropped.
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "Rules"
      Effect    = "Allow"
      Principal = { Service = "events.amazonaws.com" }
      Action    = "sns:Publish"
      Resource  = aws_sns_topic.failed[0].arn
    }]
  })
}

resource "aws_sns_topic_subscription" "email" {
  count = var.alerts && var.alert_email != "" ? 1 : 0

  topic_arn = aws_sns_topic.failed[0].arn
  protocol  = "email"
  endpoint  = var.alert_email
}

resource "aws_cloudwatch_event_rule" "failed" {
  count = var.alerts ? 1 : 0

  name        = "${var.name}-failed-builds"
  description = "Tells of failed builds of ${var.name}"
  state       = "ENABLED"
  tags        = local.tags
  event_pattern = jsonencode({
    source      = ["aws.codebuild"]
    detail-type = ["CodeBuild Build State Change"]
    detail = {
      build-status = ["FAILED", "FAULT", "TIMED_OUT"]
      project-name = [var.name]
    }
  })
}

resource "aws_cloudwatch_event_target" "failed" {
  count = var.alerts ? 1 : 0

  rule      = aws_cloudwatch_event_rule.failed[0].name
  target_id = "topic"
  arn       = aws_sns_topic.failed[0].arn

  input_transformer {
    input_paths = {
      log     = "$.detail.additional-information.logs.deep-link"
      project = "$.detail.project-name"
      status  = "$.detail.build-status"
    }
    input_template = "\"The build of <project> ended with <status>. Its log: <log>\""
  }
}
