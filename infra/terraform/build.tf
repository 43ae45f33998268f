# What builds, when, and where it says so.

resource "aws_cloudwatch_log_group" "build" {
  name              = "/aws/codebuild/${var.name}"
  retention_in_days = var.log_days
  tags              = local.tags
}

resource "aws_codebuild_project" "build" {
  name           = var.name
  description    = "Builds, tests and pushes images by paceline image"
  service_role   = aws_iam_role.build.arn
  source_version = var.source_branch
  build_timeout  = var.timeout_minutes
  queued_timeout = 480
  tags           = local.tags

  source {
    type                = "GITHUB"
    location            = var.source_url
    buildspec           = "infra/buildspec.yml"
    git_clone_depth     = 1
    report_build_status = var.webhook
  }

  environment {
    type         = "LINUX_CONTAINER"
    image        = "aws/codebuild/standard:7.0"
    compute_type = var.compute_type
    # The docker daemon that builds images runs inside the build.
    privileged_mode             = true
    image_pull_credentials_type = "CODEBUILD"

    environment_variable {
      name  = "IMAGE_DIR"
      type  = "PLAINTEXT"
      value = var.image_dir
    }

    environment_variable {
      name  = "IMAGE_REPOSITORY"
      type  = "PLAINTEXT"
      value = aws_ecr_repository.images.repository_url
    }

    # Where tags never move, each build has its number alone, and a release its version.
    environment_variable {
      name  = "IMAGE_TAGS"
      type  = "PLAINTEXT"
      value = var.tag_mutability == "IMMUTABLE" ? "none" : "git-sha latest"
    }
  }

  artifacts {
    type           = "S3"
    location       = aws_s3_bucket.artifacts.bucket
    path           = "artifacts"
    namespace_type = "BUILD_ID"
    name           = "reports.zip"
    packaging      = "ZIP"
  }

  cache {
    type     = "S3"
    location = "${aws_s3_bucket.artifacts.bucket}/cache"
  }

  logs_config {
    cloudwatch_logs {
      status     = "ENABLED"
      group_name = aws_cloudwatch_log_group.build.name
    }
  }

  # A role without its policy cannot write the first line of a log.
  depends_on = [aws_iam_role_policy.build]
}

resource "aws_codebuild_webhook" "push" {
  count = var.webhook ? 1 : 0

  project_name = aws_codebuild_project.build.name

  # Pushes only: a pull request of a stranger would run its own commands with this project's role.
  filter_group {
    filter {
      type    = "EVENT"
      pattern = "PUSH"
    }

    filter {
      type    = "HEAD_REF"
      pattern = "^refs/heads/${var.source_branch}$"
    }
  }

  filter_group {
    filter {
      type    = "EVENT"
      pattern = "PUSH"
    }

    filter {
      type    = "HEAD_REF"
      pattern = "^refs/tags/v[0-9]"
    }
  }
}

resource "aws_cloudwatch_event_rule" "nightly" {
  count = var.nightly ? 1 : 0

  name                = "${var.name}-nightly"
  description         = "Starts ${var.name} every night"
  schedule_expression = var.nightly_schedule
  state               = "ENABLED"
  tags                = local.tags
}

resource "aws_cloudwatch_event_target" "nightly" {
  count = var.nightly ? 1 : 0

  rule      = aws_cloudwatch_event_rule.nightly[0].name
  target_id = "build"
  arn       = aws_codebuild_project.build.arn
  role_arn  = aws_iam_role.nightly[0].arn
}
