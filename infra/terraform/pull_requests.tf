# Builds of pull requests, which anybody may write. A pull request can change every command of a build, so that its role must
# not be able to push, nor to write what a later build reads: no image, no cache, no artifact.

resource "aws_iam_role" "pr" {
  count = var.pull_requests ? 1 : 0

  name = "${var.name}-pr-${local.region}"
  tags = local.tags
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "codebuild.amazonaws.com" }
      Action    = "sts:AssumeRole"
      Condition = { StringEquals = { "aws:SourceAccount" = local.account }, ArnEquals = { "aws:SourceArn" = local.pr_arn } }
    }]
  })
}

resource "aws_iam_role_policy" "pr" {
  count = var.pull_requests ? 1 : 0

  name = "pr"
  role = aws_iam_role.pr[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "Logs"
        Effect   = "Allow"
        Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
        Resource = ["${aws_cloudwatch_log_group.pr[0].arn}:*"]
      },
      {
        Sid      = "Token"
        Effect   = "Allow"
        Action   = ["ecr:GetAuthorizationToken"]
        Resource = ["*"]
      },
      {
        Sid      = "Bases"
        Effect   = "Allow"
        Action   = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
        Resource = [for account in local.base_accounts : "arn:${data.aws_partition.here.partition}:ecr:*:${account}:repository/*"]
      },
      {
        Sid    = "Reports"
        Effect = "Allow"
        Action = [
          "codebuild:BatchPutTestCases",
          "codebuild:CreateReport",
          "codebuild:CreateReportGroup",
          "codebuild:UpdateReport",
        ]
        Resource = ["${local.codebuild_arn}:report-group/${var.name}-pr-image-tests"]
      },
    ]
  })
}

resource "aws_cloudwatch_log_group" "pr" {
  count = var.pull_requests ? 1 : 0

  name              = "/aws/codebuild/${var.name}-pr"
  retention_in_days = var.log_days
  tags              = local.tags
}

resource "aws_codebuild_project" "pr" {
  count = var.pull_requests ? 1 : 0

  name           = "${var.name}-pr"
  description    = "Builds and tests images of pull requests, and pushes none"
  service_role   = aws_iam_role.pr[0].arn
  source_version = var.source_branch
  build_timeout  = var.timeout_minutes
  queued_timeout = 480
  tags           = local.tags

  source {
    type                = "GITHUB"
    location            = var.source_url
    buildspec           = "infra/buildspec.yml"
    git_clone_depth     = 1
    report_build_status = true
  }

  environment {
    type                        = "LINUX_CONTAINER"
    image                       = "aws/codebuild/standard:7.0"
    compute_type                = var.compute_type
    privileged_mode             = true
    image_pull_credentials_type = "CODEBUILD"

    environment_variable {
      name  = "IMAGE_DIR"
      type  = "PLAINTEXT"
      value = var.image_dir
    }

    environment_variable {
      name  = "PUSH"
      type  = "PLAINTEXT"
      value = "no"
    }
  }

  artifacts {
    type = "NO_ARTIFACTS"
  }

  cache {
    type = "NO_CACHE"
  }

  logs_config {
    cloudwatch_logs {
      status     = "ENABLED"
      group_name = aws_cloudwatch_log_group.pr[0].name
    }
  }

  depends_on = [aws_iam_role_policy.pr]
}

# By the AWS CLI, because aws_codebuild_webhook has no approval of forks before version 6 of the provider, and a webhook must
# not exist without it for a moment.
resource "terraform_data" "pr_webhook" {
  count = var.pull_requests ? 1 : 0

  input = {
    PROJECT = aws_codebuild_project.pr[0].name
    REGION  = local.region
  }
  triggers_replace = [aws_codebuild_project.pr[0].arn, var.source_branch]

  provisioner "local-exec" {
    command = "aws codebuild create-webhook --region \"$REGION\" --project-name \"$PROJECT\" --filter-groups \"$FILTERS\" --pull-request-build-policy \"$POLICY\" >/dev/null"
    environment = merge(self.input, {
      FILTERS = jsonencode([[
        { type = "EVENT", pattern = "PULL_REQUEST_CREATED, PULL_REQUEST_UPDATED, PULL_REQUEST_REOPENED" },
        { type = "BASE_REF", pattern = "^refs/heads/${var.source_branch}$" },
      ]])
      # Of a fork, a build starts only after somebody with one of these roles has commented /codebuild_run(COMMIT).
      POLICY = jsonencode({
        requiresCommentApproval = "FORK_PULL_REQUESTS"
        approverRoles           = ["GITHUB_ADMIN", "GITHUB_MAINTAIN", "GITHUB_WRITE"]
      })
    })
  }

  provisioner "local-exec" {
    when        = destroy
    command     = "aws codebuild delete-webhook --region \"$REGION\" --project-name \"$PROJECT\""
    environment = self.input
  }
}
