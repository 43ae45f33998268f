# What builds images on AWS: names that several files need. See ../README.md.

data "aws_caller_identity" "here" {}
data "aws_partition" "here" {}
data "aws_region" "here" {}

locals {
  account       = data.aws_caller_identity.here.account_id
  region        = data.aws_region.here.name
  codebuild_arn = "arn:${data.aws_partition.here.partition}:codebuild:${local.region}:${local.account}"
  # Written out, because the role names the project, and the project its role.
  project_arn = "${local.codebuild_arn}:project/${var.name}"
  pr_arn      = "${local.codebuild_arn}:project/${var.name}-pr"
  rule_arn    = "arn:${data.aws_partition.here.partition}:events:${local.region}:${local.account}:rule/${var.name}-nightly"
  tags        = merge(var.tags, { Application = "paceline", Project = var.name })
}
