# Where artifacts, the cache between builds, and images lie.

resource "aws_s3_bucket" "artifacts" {
  bucket        = "${var.name}-${local.account}-${local.region}"
  force_destroy = var.delete_data
  tags          = local.tags
}

resource "aws_s3_bucket_versioning" "artifacts" {
  bucket = aws_s3_bucket.artifacts.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "artifacts" {
  bucket = aws_s3_bucket.artifacts.id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

resource "aws_s3_bucket_public_access_block" "artifacts" {
  bucket                  = aws_s3_bucket.artifacts.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

# Versions that were overwritten would otherwise stay, and be paid for, for ever: the cache is overwritten by every build.
resource "aws_s3_bucket_lifecycle_configuration" "artifacts" {
  count = var.old_version_days > 0 ? 1 : 0

  bucket = aws_s3_bucket.artifacts.id

  rule {
    id     = "old-versions"
    status = "Enabled"

    filter {
      prefix = ""
    }

    noncurrent_version_expiration {
      noncurrent_days = var.old_version_days
    }

    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }

  depends_on = [aws_s3_bucket_versioning.artifacts]
}

resource "aws_s3_bucket_policy" "artifacts" {
  bucket = aws_s3_bucket.artifacts.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "OnlyByTls"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [aws_s3_bucket.artifacts.arn, "${aws_s3_bucket.artifacts.arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })

  depends_on = [aws_s3_bucket_public_access_block.artifacts]
}

resource "aws_ecr_repository" "images" {
  name                 = var.name
  image_tag_mutability = var.tag_mutability
  force_delete         = var.delete_data
  tags                 = local.tags

  image_scanning_configuration {
    scan_on_push = true
  }

  encryption_configuration {
    encryption_type = "AES256"
  }
}

# An image that matches a rule is never expired by a rule with a higher number. So releases, latest and what is deployed
# come first, with a count that nobody reaches, and only then the rule that takes the oldest of all others.
resource "aws_ecr_lifecycle_policy" "images" {
  repository = aws_ecr_repository.images.name
  policy = jsonencode({
    rules = [
      {
        rulePriority = 1
        description  = "keep releases: 1.2.3 and v1.2.3"
        selection    = { tagStatus = "tagged", tagPatternList = ["*.*.*"], countType = "imageCountMoreThan", countNumber = 9999 }
        action       = { type = "expire" }
      },
      {
        rulePriority = 2
        description  = "keep latest"
        selection    = { tagStatus = "tagged", tagPatternList = ["latest"], countType = "imageCountMoreThan", countNumber = 9999 }
        action       = { type = "expire" }
      },
      {
        rulePriority = 3
        description  = "keep what is deployed: deployed-*"
        selection    = { tagStatus = "tagged", tagPrefixList = ["deployed-"], countType = "imageCountMoreThan", countNumber = 9999 }
        action       = { type = "expire" }
      },
      {
        rulePriority = 4
        description  = "few layer caches"
        selection    = { tagStatus = "tagged", tagPrefixList = ["buildcache"], countType = "imageCountMoreThan", countNumber = 3 }
        action       = { type = "expire" }
      },
      {
        rulePriority = 5
        description  = "untagged images go after a week"
        selection    = { tagStatus = "untagged", countType = "sinceImagePushed", countUnit = "days", countNumber = 7 }
        action       = { type = "expire" }
      },
      {
        rulePriority = 6
        description  = "of all others, the newest stay"
        selection    = { tagStatus = "any", countType = "imageCountMoreThan", countNumber = var.keep_images }
        action       = { type = "expire" }
      },
    ]
  })
}
