# Who may do what. "*" as a resource stands once: a token for ECR cannot be asked for of one repository.

locals {
  # AWS Deep Learning Containers, by account, one of which serves each region. As of 2026-11-16,
  # https://aws.github.io/deep-learning-containers/reference/available_images/
  base_accounts = [
    "763104351884", "626614931356", "871362719292", "975050140332", "364406365360", "772153158452",
    "907027046896", "457447274322", "550225433462", "590183813437", "204538143572", "380420809688",
    "692866216735", "503227376785", "780543022126", "914824155844", "217643126080", "637423239942",
    "727897471807", "446045086412", "442386744353",
  ]
}

# Roles are of the whole account: the region in the name keeps those of two regions apart.
resource "aws_iam_role" "build" {
  name = "${var.name}-build-${local.region}"
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
        # In every region: a build may push to the repositories of the same name that other regions have.
        Resource = ["arn:${data.aws_partition.here.partition}:ecr:*:${local.account}:repository/${var.name}"]
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
        Resource = ["${local.codebuild_arn}:report-group/${var.name}-image-tests"]
      },
    ]
  })
}

resource "aws_iam_role" "nightly" {
  count = var.nightly ? 1 : 0

  name = "${var.name}-nightly-${local.region}"
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
