# What was made, by name: for whoever starts builds and reads their logs.

output "project" {
  description = "The CodeBuild project: aws codebuild start-build --project-name ..."
  value       = aws_codebuild_project.build.name
}

output "repository_url" {
  description = "Where images are pushed to."
  value       = aws_ecr_repository.images.repository_url
}

output "bucket" {
  description = "Where reports of builds, and the cache between them, lie."
  value       = aws_s3_bucket.artifacts.bucket
}

output "log_group" {
  description = "Where builds write their logs: aws logs tail ..."
  value       = aws_cloudwatch_log_group.build.name
}

output "build_role_arn" {
  description = "The role that builds have."
  value       = aws_iam_role.build.arn
}

output "nightly_rule" {
  description = "What starts a build every night; empty without one."
  value       = var.nightly ? aws_cloudwatch_event_rule.nightly[0].name : ""
}

output "webhook_url" {
  description = "Where GitHub tells of pushes; empty without a webhook."
  value       = var.webhook ? aws_codebuild_webhook.push[0].payload_url : ""
}
