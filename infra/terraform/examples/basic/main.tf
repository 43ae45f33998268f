# The module in a configuration of one's own: terraform init, then terraform apply -var source_url=https://github.com/OWNER/NAME.git

terraform {
  required_version = ">= 1.5"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "region" {
  description = "Where builds run. A second region is a second call of the module with another provider."
  type        = string
  default     = "us-east-1"
}

variable "source_url" {
  description = "The GitHub repository that is built, by https."
  type        = string
}

variable "alert_email" {
  description = "Who is told of failed builds; empty for nobody."
  type        = string
  default     = ""
}

provider "aws" {
  region = var.region
}

module "images" {
  source = "../.."

  name        = "train-images"
  source_url  = var.source_url
  alert_email = var.alert_email
  tags        = { Team = "training" }
}

output "images" {
  description = "The seven outputs of the module: the project, the repository, the bucket, the log group, the role, the rule, the webhook."
  value       = module.images
}
