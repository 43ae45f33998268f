# What may be chosen. The same choices, with the same defaults, are parameters of ../cloudformation/template.yaml and flags
# of ../aws-cli/build-infra.sh; a test compares what comes of them.

variable "name" {
  description = "What everything is called: the project, the repository, and the beginning of all other names."
  type        = string
  default     = "paceline-images"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 32 small letters, digits and hyphens, begin with a letter and not end with a hyphen, such as paceline-images."
  }
}

variable "source_url" {
  description = "The GitHub repository that is built, by https."
  type        = string

  validation {
    condition     = can(regex("^https://github\\.com/[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+\\.git$", var.source_url))
    error_message = "source_url must look like https://github.com/OWNER/NAME.git, without a user or token in it."
  }
}

variable "source_branch" {
  description = "The branch that is built."
  type        = string
  default     = "main"

  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9_./-]{0,99}$", var.source_branch))
    error_message = "source_branch must be the name of a branch, such as main."
  }
}

variable "image_dir" {
  description = "The folder in the repository that holds the Dockerfile."
  type        = string
  default     = "."

  validation {
    condition     = can(regex("^[A-Za-z0-9_.][A-Za-z0-9_./-]{0,199}$", var.image_dir)) && !can(regex("\\.\\.", var.image_dir))
    error_message = "image_dir must be a folder inside the repository, such as . or services/train."
  }
}

variable "compute_type" {
  description = "How large the machine is that builds."
  type        = string
  default     = "BUILD_GENERAL1_MEDIUM"

  validation {
    condition     = contains(["BUILD_GENERAL1_SMALL", "BUILD_GENERAL1_MEDIUM", "BUILD_GENERAL1_LARGE", "BUILD_GENERAL1_2XLARGE"], var.compute_type)
    error_message = "compute_type must be BUILD_GENERAL1_SMALL, _MEDIUM, _LARGE or _2XLARGE."
  }
}

variable "timeout_minutes" {
  description = "After so many minutes a build is given up."
  type        = number
  default     = 60

  validation {
    condition     = var.timeout_minutes >= 5 && var.timeout_minutes <= 480 && floor(var.timeout_minutes) == var.timeout_minutes
    error_message = "timeout_minutes must be a whole number from 5 to 480."
  }
}

variable "log_days" {
  description = "For so many days the logs of builds are kept."
  type        = number
  default     = 30

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1827, 3653], var.log_days)
    error_message = "log_days must be one of the numbers that CloudWatch knows: 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1827, 3653."
  }
}

variable "old_version_days" {
  description = "For so many days a version of an artifact or of the cache is kept after it was overwritten; 0 is for ever."
  type        = number
  default     = 30

  validation {
    condition     = var.old_version_days >= 0 && var.old_version_days <= 3650 && floor(var.old_version_days) == var.old_version_days
    error_message = "old_version_days must be a whole number from 0 to 3650."
  }
}

variable "keep_images" {
  description = "So many images are kept besides releases, latest and what is deployed."
  type        = number
  default     = 50

  validation {
    condition     = var.keep_images >= 1 && var.keep_images <= 1000 && floor(var.keep_images) == var.keep_images
    error_message = "keep_images must be a whole number from 1 to 1000."
  }
}

variable "tag_mutability" {
  description = "May a tag move to another image? With IMMUTABLE there is no latest: images have the number of their build, releases their version."
  type        = string
  default     = "MUTABLE"

  validation {
    condition     = contains(["MUTABLE", "IMMUTABLE"], var.tag_mutability)
    error_message = "tag_mutability must be MUTABLE or IMMUTABLE."
  }
}

variable "webhook" {
  description = "Build on every push to the branch and on every tag such as v1.2.3. CodeBuild must have been given access to GitHub before."
  type        = bool
  default     = false
}

variable "pull_requests" {
  description = "Build and test pull requests to the branch, in a project that cannot push. Those of forks need an approval by comment. CodeBuild must have been given access to GitHub before; the AWS CLI must be where Terraform runs."
  type        = bool
  default     = false
}

variable "alerts" {
  description = "Send a message to an SNS topic when a build fails."
  type        = bool
  default     = true
}

variable "alert_email" {
  description = "An address that gets these messages too, once its owner has confirmed it; empty for none."
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^$|^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\\.[A-Za-z]{2,}$", var.alert_email))
    error_message = "alert_email must be an e-mail address, or empty."
  }
}

variable "nightly" {
  description = "Build every night."
  type        = bool
  default     = true
}

variable "nightly_schedule" {
  description = "When a nightly build begins, in UTC."
  type        = string
  default     = "cron(0 3 * * ? *)"

  validation {
    condition     = can(regex("^(cron|rate)\\([A-Za-z0-9 ,*?/#-]+\\)$", var.nightly_schedule))
    error_message = "nightly_schedule must be cron(...) or rate(...) as EventBridge writes it, such as cron(0 3 * * ? *)."
  }
}

variable "delete_data" {
  description = "Let terraform destroy also delete images and artifacts. Otherwise it stops where some are left."
  type        = bool
  default     = false
}

variable "tags" {
  description = "More tags on everything."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for key in keys(var.tags) : !startswith(lower(key), "aws:") && !contains(["Application", "Project"], key)])
    error_message = "tags must not begin with aws:, and Application and Project are set already."
  }
}
