# Who may do what. "*" as a resource stands once: a token for ECR cannot be asked for of one repository.

resource "aws_iam_role" "build" {
  name = "${var.name}-build"
  tags = local.tags
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "codebuild.amazonaws.com" }
      Action    = "sts:AssumeRole"
      # Only for this project: no project of another account, and no other of this one, can borrow the role.
      Condition = { StringEquals = { "aws:SourceAccount" = local.account }, ArnEquals = { "aws:SourceArn" = local.project_arn } }
    }]
  })
}

resource "aws_iam_role_policy" "build" {
  name = "build"
  role = aws_iam_role.build.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "Logs"
        Effect   = "Allow"
        Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
        Resource = ["${aws_cloudwatch_log_group.build.arn}:*"]
      },
      {
        Sid      = "Objects"
        Effect   = "Allow"
        Action   = ["s3:GetObject", "s3:GetObjectVersion", "s3:PutObject"]
        Resource = ["${aws_s3_bucket.artifacts.arn}/artifacts/*", "${aws_s3_bucket.artifacts.arn}/cache/*"]
      },
      {
        Sid      = "Bucket"
        Effect   = "Allow"
        Action   = ["s3:GetBucketAcl", "s3:GetBucketLocation", "s3:ListBucket"]
        Resource = [aws_s3_bucket.artifacts.arn]
      },
      {
        Sid      = "Token"
        Effect   = "Allow"
        Action   = ["ecr:GetAuthorizationToken"]
        Resource = ["*"]
      },
      {
        Sid    = "Images"
        Effect = "Allow"
        Action = [
          "ecr:BatchCheckLayerAvailability",
          "ecr:BatchGetImage",
          "ecr:CompleteLayerUpload",
          "ecr:DescribeImages",
          "ecr:DescribeRepositories",
          "ecr:GetDownloadUrlForLayer",
          "ecr:InitiateLayerUpload",
          "ecr:PutImage",
          "ecr:UploadLayerPart",
        ]
        Resource = [aws_ecr_repository.images.arn]
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
        Resource = ["${local.codebuild_arn}:report-group/${var.name}-image-tests"]
      },
    ]
  })
}

resource "aws_iam_role" "nightly" {
  count = var.nightly ? 1 : 0

  name = "${var.name}-nightly"
  tags = local.tags
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "events.amazonaws.com" }
      Action    = "sts:AssumeRole"
      Condition = { StringEquals = { "aws:SourceAccount" = local.account }, ArnEquals = { "aws:SourceArn" = local.rule_arn } }
    }]
  })
}

resource "aws_iam_role_policy" "nightly" {
  count = var.nightly ? 1 : 0

  name = "nightly"
  role = aws_iam_role.nightly[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid      = "Start"
      Effect   = "Allow"
      Action   = ["codebuild:StartBuild"]
      Resource = [local.project_arn]
    }]
  })
}
