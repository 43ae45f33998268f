#!/usr/bin/env bash
# How does what builds images come to AWS, with nothing but the AWS CLI? One command makes it, one takes it away.
#
# Running it again changes what differs and leaves the rest. ../cloudformation and ../terraform make the same.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=infra/lib.sh
source "$here/../lib.sh"

NAME="${NAME:-paceline-images}"
SOURCE_URL="${SOURCE_URL:-}"
SOURCE_BRANCH="${SOURCE_BRANCH:-main}"
IMAGE_DIR="${IMAGE_DIR:-.}"
COMPUTE_TYPE="${COMPUTE_TYPE:-BUILD_GENERAL1_MEDIUM}"
TIMEOUT_MINUTES="${TIMEOUT_MINUTES:-60}"
LOG_DAYS="${LOG_DAYS:-30}"
OLD_VERSION_DAYS="${OLD_VERSION_DAYS:-30}"
KEEP_IMAGES="${KEEP_IMAGES:-50}"
TAG_MUTABILITY="${TAG_MUTABILITY:-MUTABLE}"
WEBHOOK="${WEBHOOK:-no}"
PULL_REQUESTS="${PULL_REQUESTS:-no}"
ALERTS="${ALERTS:-yes}"
ALERT_EMAIL="${ALERT_EMAIL:-}"
NIGHTLY="${NIGHTLY:-yes}"
NIGHTLY_SCHEDULE="${NIGHTLY_SCHEDULE:-cron(0 3 * * ? *)}"
DELETE_DATA="${DELETE_DATA:-no}"
MORE_TAGS=()

usage() {
  cat <<EOF
usage: build-infra.sh create --source-url URL [flags]
       build-infra.sh teardown [--name NAME] [--delete-data]
Each flag is also a variable; the flag wins. Credentials and region are those of the AWS CLI.
  --name NAME             of the project and the repository; begins all names  NAME              [$NAME]
  --source-url URL        https://github.com/OWNER/NAME.git                    SOURCE_URL        [$SOURCE_URL]
  --source-branch BRANCH  that is built                                        SOURCE_BRANCH     [$SOURCE_BRANCH]
  --image-dir DIR         of the Dockerfile, in the repository                 IMAGE_DIR         [$IMAGE_DIR]
  --compute-type TYPE     BUILD_GENERAL1_SMALL, _MEDIUM, _LARGE, _2XLARGE      COMPUTE_TYPE      [$COMPUTE_TYPE]
  --timeout-minutes N     after which a build is given up                      TIMEOUT_MINUTES   [$TIMEOUT_MINUTES]
  --log-days N            for which logs are kept                              LOG_DAYS          [$LOG_DAYS]
  --old-version-days N    for which overwritten artifacts are kept; 0: ever    OLD_VERSION_DAYS  [$OLD_VERSION_DAYS]
  --keep-images N         besides releases, latest and what is deployed        KEEP_IMAGES       [$KEEP_IMAGES]
  --tag-mutability M      MUTABLE or IMMUTABLE (without latest)                TAG_MUTABILITY    [$TAG_MUTABILITY]
  --webhook, --no-webhook build on every push; CodeBuild must know GitHub      WEBHOOK           [$WEBHOOK]
  --pull-requests, --no-pull-requests
                          build pull requests, without a push                  PULL_REQUESTS     [$PULL_REQUESTS]
  --alerts, --no-alerts   tell an SNS topic of failed builds                   ALERTS            [$ALERTS]
  --alert-email ADDRESS   that is told of them too, once it is confirmed       ALERT_EMAIL       [$ALERT_EMAIL]
  --nightly, --no-nightly build every night                                    NIGHTLY           [$NIGHTLY]
  --nightly-schedule S    in UTC, as EventBridge writes it                     NIGHTLY_SCHEDULE  [$NIGHTLY_SCHEDULE]
  --tag KEY=VALUE         one more tag on everything; may be repeated
  --delete-data           teardown also deletes images and artifacts           DELETE_DATA       [$DELETE_DATA]
EOF
}

command="${1:-}"
case "$command" in
  create | teardown) shift ;;
  -h | --help) usage; exit 0 ;;
  *) fail "there is no command '$command'" "build-infra.sh create, or build-infra.sh teardown; see --help" ;;
esac
while [[ $# -gt 0 ]]; do
  case "$1" in
    --name) value_of "$1" $#; NAME="$2"; shift 2 ;;
    --source-url) value_of "$1" $#; SOURCE_URL="$2"; shift 2 ;;
    --source-branch) value_of "$1" $#; SOURCE_BRANCH="$2"; shift 2 ;;
    --image-dir) value_of "$1" $#; IMAGE_DIR="$2"; shift 2 ;;
    --compute-type) value_of "$1" $#; COMPUTE_TYPE="$2"; shift 2 ;;
    --timeout-minutes) value_of "$1" $#; TIMEOUT_MINUTES="$2"; shift 2 ;;
    --log-days) value_of "$1" $#; LOG_DAYS="$2"; shift 2 ;;
    --old-version-days) value_of "$1" $#; OLD_VERSION_DAYS="$2"; shift 2 ;;
    --keep-images) value_of "$1" $#; KEEP_IMAGES="$2"; shift 2 ;;
    --tag-mutability) value_of "$1" $#; TAG_MUTABILITY="$2"; shift 2 ;;
    --webhook) WEBHOOK=yes; shift ;;
    --no-webhook) WEBHOOK=no; shift ;;
    --pull-requests) PULL_REQUESTS=yes; shift ;;
    --no-pull-requests) PULL_REQUESTS=no; shift ;;
    --alerts) ALERTS=yes; shift ;;
    --no-alerts) ALERTS=no; shift ;;
    --alert-email) value_of "$1" $#; ALERT_EMAIL="$2"; shift 2 ;;
    --nightly) NIGHTLY=yes; shift ;;
    --no-nightly) NIGHTLY=no; shift ;;
    --nightly-schedule) value_of "$1" $#; NIGHTLY_SCHEDULE="$2"; shift 2 ;;
    --tag) value_of "$1" $#; MORE_TAGS+=("$2"); shift 2 ;;
    --delete-data) DELETE_DATA=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) fail "there is no flag $1" "see build-infra.sh --help" ;;
  esac
done

check_choices() {
  is_name --name "$NAME"
  if [[ "$command" == teardown ]]; then return 0; fi
  matches --source-url "$SOURCE_URL" 'https://github\.com/[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+\.git' \
    "like https://github.com/OWNER/NAME.git, without a user or token in it"
  matches --source-branch "$SOURCE_BRANCH" '[A-Za-z0-9][A-Za-z0-9_./-]{0,99}' "the name of a branch, such as main"
  matches --image-dir "$IMAGE_DIR" '[A-Za-z0-9_.][A-Za-z0-9_./-]{0,199}' "a folder inside the repository"
  if [[ "$IMAGE_DIR" == *..* ]]; then fail "--image-dir is '$IMAGE_DIR', outside of the repository" "see --help"; fi
  matches --compute-type "$COMPUTE_TYPE" 'BUILD_GENERAL1_(SMALL|MEDIUM|LARGE|2XLARGE)' "one of those in --help"
  between --timeout-minutes "$TIMEOUT_MINUTES" 5 480
  matches --log-days "$LOG_DAYS" '1|3|5|7|14|30|60|90|120|150|180|365|400|545|731|1827|3653' "a number that CloudWatch knows, such as 30"
  between --old-version-days "$OLD_VERSION_DAYS" 0 3650
  between --keep-images "$KEEP_IMAGES" 1 1000
  matches --tag-mutability "$TAG_MUTABILITY" 'MUTABLE|IMMUTABLE' "MUTABLE or IMMUTABLE"
  matches WEBHOOK "$WEBHOOK" 'yes|no' "yes or no"
  matches PULL_REQUESTS "$PULL_REQUESTS" 'yes|no' "yes or no"
  matches ALERTS "$ALERTS" 'yes|no' "yes or no"
  matches --alert-email "$ALERT_EMAIL" '|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}' "an e-mail address, or empty"
  matches NIGHTLY "$NIGHTLY" 'yes|no' "yes or no"
  matches --nightly-schedule "$NIGHTLY_SCHEDULE" '(cron|rate)\([A-Za-z0-9 ,*?/#-]+\)' "cron(...) or rate(...) as EventBridge writes it"
  local tag
  for tag in ${MORE_TAGS[@]+"${MORE_TAGS[@]}"}; do
    matches --tag "$tag" '[A-Za-z0-9 _.:/+@-]{1,128}=[A-Za-z0-9 _.:/+@-]{0,256}' "KEY=VALUE of letters, digits, spaces and _.:/+-@"
  done
}

# tags KEY VALUE: all tags as JSON, with these words for the two halves; AWS has three ways to write them.
tags() {
  local tag sep=""
  printf '['
  for tag in Application=paceline "Project=$NAME" ${MORE_TAGS[@]+"${MORE_TAGS[@]}"}; do
    printf '%s{"%s": "%s", "%s": "%s"}' "$sep" "$1" "${tag%%=*}" "$2" "${tag#*=}"
    sep=", "
  done
  printf ']'
}

# tag_map: the fourth.
tag_map() {
  local tag sep=""
  printf '{'
  for tag in Application=paceline "Project=$NAME" ${MORE_TAGS[@]+"${MORE_TAGS[@]}"}; do
    printf '%s"%s": "%s"' "$sep" "${tag%%=*}" "${tag#*=}"
    sep=", "
  done
  printf '}'
}

# make_logs PROJECT
make_logs() {
  local group="/aws/codebuild/$1"
  say "== log group $group"
  if ! logs_there "$1"; then aws logs create-log-group --log-group-name "$group" --tags "$(tag_map)"; fi
  aws logs put-retention-policy --log-group-name "$group" --retention-in-days "$LOG_DAYS"
  aws logs tag-resource --resource-arn "arn:$PARTITION:logs:$REGION:$ACCOUNT:log-group:$group" --tags "$(tag_map)"
}

make_bucket() {
  say "== bucket $BUCKET"
  local place=()
  # us-east-1 is the place that must not be named.
  if [[ "$REGION" != us-east-1 ]]; then place=(--create-bucket-configuration "LocationConstraint=$REGION"); fi
  if ! bucket_there; then aws s3api create-bucket --bucket "$BUCKET" ${place[@]+"${place[@]}"} >/dev/null; fi
  aws s3api put-public-access-block --bucket "$BUCKET" --public-access-block-configuration \
    BlockPublicAcls=true,BlockPublicPolicy=true,IgnorePublicAcls=true,RestrictPublicBuckets=true
  aws s3api put-bucket-versioning --bucket "$BUCKET" --versioning-configuration Status=Enabled
  aws s3api put-bucket-encryption --bucket "$BUCKET" --server-side-encryption-configuration \
    '{"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}'
  aws s3api put-bucket-tagging --bucket "$BUCKET" --tagging "{\"TagSet\": $(tags Key Value)}"
  if [[ "$OLD_VERSION_DAYS" == 0 ]]; then
    aws s3api delete-bucket-lifecycle --bucket "$BUCKET"
  else
    # Versions that were overwritten would otherwise stay, and be paid for, for ever.
    aws s3api put-bucket-lifecycle-configuration --bucket "$BUCKET" --lifecycle-configuration "{\"Rules\": [{
      \"ID\": \"old-versions\", \"Status\": \"Enabled\", \"Filter\": {\"Prefix\": \"\"},
      \"NoncurrentVersionExpiration\": {\"NoncurrentDays\": $OLD_VERSION_DAYS},
      \"AbortIncompleteMultipartUpload\": {\"DaysAfterInitiation\": 7}}]}" >/dev/null
  fi
  aws s3api put-bucket-policy --bucket "$BUCKET" --policy "{\"Version\": \"2012-10-17\", \"Statement\": [{
    \"Sid\": \"OnlyByTls\", \"Effect\": \"Deny\", \"Principal\": \"*\", \"Action\": \"s3:*\",
    \"Resource\": [\"arn:$PARTITION:s3:::$BUCKET\", \"arn:$PARTITION:s3:::$BUCKET/*\"],
    \"Condition\": {\"Bool\": {\"aws:SecureTransport\": \"false\"}}}]}"
}

# An image that matches a rule is never expired by a rule with a higher number. So releases, latest and what is deployed
# come first, with a count that nobody reaches, and only then the rule that takes the oldest of all others.
lifecycle_policy() {
  cat <<EOF
{"rules": [
  {"rulePriority": 1, "description": "keep releases: 1.2.3 and v1.2.3",
   "selection": {"tagStatus": "tagged", "tagPatternList": ["*.*.*"], "countType": "imageCountMoreThan", "countNumber": 9999},
   "action": {"type": "expire"}},
  {"rulePriority": 2, "description": "keep latest",
   "selection": {"tagStatus": "tagged", "tagPatternList": ["latest"], "countType": "imageCountMoreThan", "countNumber": 9999},
   "action": {"type": "expire"}},
  {"rulePriority": 3, "description": "keep what is deployed: deployed-*",
   "selection": {"tagStatus": "tagged", "tagPrefixList": ["deployed-"], "countType": "imageCountMoreThan", "countNumber": 9999},
   "action": {"type": "expire"}},
  {"rulePriority": 4, "description": "few layer caches",
   "selection": {"tagStatus": "tagged", "tagPrefixList": ["buildcache"], "countType": "imageCountMoreThan", "countNumber": 3},
   "action": {"type": "expire"}},
  {"rulePriority": 5, "description": "untagged images go after a week",
   "selection": {"tagStatus": "untagged", "countType": "sinceImagePushed", "countUnit": "days", "countNumber": 7},
   "action": {"type": "expire"}},
  {"rulePriority": 6, "description": "of all others, the newest stay",
   "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": $KEEP_IMAGES},
   "action": {"type": "expire"}}
]}
EOF
}

make_repository() {
  say "== repository $NAME"
  if ! images_there; then
    aws ecr create-repository --repository-name "$NAME" --encryption-configuration encryptionType=AES256 \
      --tags "$(tags Key Value)" >/dev/null
  fi
  read -r IMAGES_ARN IMAGES_URL <<<"$(aws ecr describe-repositories --repository-names "$NAME" \
    --query 'repositories[0].[repositoryArn, repositoryUri]' --output text)"
  aws ecr put-image-scanning-configuration --repository-name "$NAME" --image-scanning-configuration scanOnPush=true >/dev/null
  aws ecr put-image-tag-mutability --repository-name "$NAME" --image-tag-mutability "$TAG_MUTABILITY" >/dev/null
  aws ecr put-lifecycle-policy --repository-name "$NAME" --lifecycle-policy-text "$(lifecycle_policy)" >/dev/null
  aws ecr tag-resource --resource-arn "$IMAGES_ARN" --tags "$(tags Key Value)"
}

# trust SERVICE ARN: who may take a role, and for what alone.
trust() {
  printf '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"Service": "%s"}, "Action": "sts:AssumeRole",
    "Condition": {"StringEquals": {"aws:SourceAccount": "%s"}, "ArnEquals": {"aws:SourceArn": "%s"}}}]}' "$1" "$ACCOUNT" "$2"
}

# Whose images a build may begin with: AWS Deep Learning Containers, by account, one of which serves each region.
# As of 2026-11-16, https://aws.github.io/deep-learning-containers/reference/available_images/
BASE_ACCOUNTS=(
  763104351884 626614931356 871362719292 975050140332 364406365360 772153158452 907027046896
  457447274322 550225433462 590183813437 204538143572 380420809688 692866216735 503227376785
  780543022126 914824155844 217643126080 637423239942 727897471807 446045086412 442386744353
)
base_repositories() {
  local account sep=""
  for account in "${BASE_ACCOUNTS[@]}"; do
    printf '%s"arn:%s:ecr:*:%s:repository/*"' "$sep" "$PARTITION" "$account"
    sep=", "
  done
}

# What a build may do: push to the repository of this name in every region, pull bases. "*" as a resource stands once: a token for ECR cannot be asked for of one repository.
build_policy() {
  cat <<EOF
{"Version": "2012-10-17", "Statement": [
  {"Sid": "Logs", "Effect": "Allow", "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
   "Resource": ["arn:$PARTITION:logs:$REGION:$ACCOUNT:log-group:/aws/codebuild/$NAME:*"]},
  {"Sid": "Objects", "Effect": "Allow", "Action": ["s3:GetObject", "s3:GetObjectVersion", "s3:PutObject"],
   "Resource": ["arn:$PARTITION:s3:::$BUCKET/artifacts/*", "arn:$PARTITION:s3:::$BUCKET/cache/*"]},
  {"Sid": "Bucket", "Effect": "Allow", "Action": ["s3:GetBucketAcl", "s3:GetBucketLocation", "s3:ListBucket"],
   "Resource": ["arn:$PARTITION:s3:::$BUCKET"]},
  {"Sid": "Token", "Effect": "Allow", "Action": ["ecr:GetAuthorizationToken"], "Resource": ["*"]},
  {"Sid": "Images", "Effect": "Allow", "Action": [
     "ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:CompleteLayerUpload", "ecr:DescribeImages",
     "ecr:DescribeRepositories", "ecr:GetDownloadUrlForLayer", "ecr:InitiateLayerUpload", "ecr:PutImage", "ecr:UploadLayerPart"],
   "Resource": ["arn:$PARTITION:ecr:*:$ACCOUNT:repository/$NAME"]},
  {"Sid": "Bases", "Effect": "Allow", "Action": [
     "ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
   "Resource": [$(base_repositories)]},
  {"Sid": "Reports", "Effect": "Allow", "Action": [
     "codebuild:BatchPutTestCases", "codebuild:CreateReport", "codebuild:CreateReportGroup", "codebuild:UpdateReport"],
   "Resource": ["arn:$PARTITION:codebuild:$REGION:$ACCOUNT:report-group/$NAME-image-tests"]}
]}
EOF
}

# make_role ROLE TRUST POLICY-NAME POLICY
make_role() {
  say "== role $1"
  if ! role_there "$1"; then
    aws iam create-role --role-name "$1" --assume-role-policy-document "$2" --tags "$(tags Key Value)" >/dev/null
  fi
  aws iam update-assume-role-policy --role-name "$1" --policy-document "$2"
  aws iam put-role-policy --role-name "$1" --policy-name "$3" --policy-document "$4"
  aws iam tag-role --role-name "$1" --tags "$(tags Key Value)"
}

project_description() {
  local reports=false tags="git-sha latest"
  # Where tags never move, each build has its number alone, and a release its version.
  if [[ "$TAG_MUTABILITY" == IMMUTABLE ]]; then tags=none; fi
  if [[ "$WEBHOOK" == yes ]]; then reports=true; fi
  cat <<EOF
{"name": "$NAME", "description": "Builds, tests and pushes images by paceline image",
 "serviceRole": "$BUILD_ROLE_ARN", "sourceVersion": "$SOURCE_BRANCH",
 "timeoutInMinutes": $TIMEOUT_MINUTES, "queuedTimeoutInMinutes": 480,
 "source": {"type": "GITHUB", "location": "$SOURCE_URL", "buildspec": "infra/buildspec.yml", "gitCloneDepth": 1,
            "reportBuildStatus": $reports},
 "environment": {"type": "LINUX_CONTAINER", "image": "aws/codebuild/standard:7.0", "computeType": "$COMPUTE_TYPE",
                 "privilegedMode": true, "imagePullCredentialsType": "CODEBUILD", "environmentVariables": [
                   {"name": "IMAGE_DIR", "type": "PLAINTEXT", "value": "$IMAGE_DIR"},
                   {"name": "IMAGE_REPOSITORY", "type": "PLAINTEXT", "value": "$IMAGES_URL"},
                   {"name": "IMAGE_TAGS", "type": "PLAINTEXT", "value": "$tags"}]},
 "artifacts": {"type": "S3", "location": "$BUCKET", "path": "artifacts", "namespaceType": "BUILD_ID", "name": "reports.zip",
               "packaging": "ZIP"},
 "cache": {"type": "S3", "location": "$BUCKET/cache"},
 "logsConfig": {"cloudWatchLogs": {"status": "ENABLED", "groupName": "/aws/codebuild/$NAME"}},
 "tags": $(tags key value)}
EOF
}

pull_request_description() {
  cat <<EOF
{"name": "$NAME-pr", "description": "Builds and tests images of pull requests, and pushes none",
 "serviceRole": "arn:$PARTITION:iam::$ACCOUNT:role/$PR_ROLE", "sourceVersion": "$SOURCE_BRANCH",
 "timeoutInMinutes": $TIMEOUT_MINUTES, "queuedTimeoutInMinutes": 480,
 "source": {"type": "GITHUB", "location": "$SOURCE_URL", "buildspec": "infra/buildspec.yml", "gitCloneDepth": 1,
            "reportBuildStatus": true},
 "environment": {"type": "LINUX_CONTAINER", "image": "aws/codebuild/standard:7.0", "computeType": "$COMPUTE_TYPE",
                 "privilegedMode": true, "imagePullCredentialsType": "CODEBUILD", "environmentVariables": [
                   {"name": "IMAGE_DIR", "type": "PLAINTEXT", "value": "$IMAGE_DIR"},
                   {"name": "PUSH", "type": "PLAINTEXT", "value": "no"}]},
 "artifacts": {"type": "NO_ARTIFACTS"},
 "cache": {"type": "NO_CACHE"},
 "logsConfig": {"cloudWatchLogs": {"status": "ENABLED", "groupName": "/aws/codebuild/$NAME-pr"}},
 "tags": $(tags key value)}
EOF
}

# make_project PROJECT DESCRIPTION
make_project() {
  say "== project $1"
  local verb=create-project tries=12
  if project_there "$1"; then verb=update-project; fi
  printf '%s\n' "$2" >"$WORK/project.json"
  # A role that was just made is not known everywhere at once: CodeBuild then says that it may not take it.
  until aws codebuild "$verb" --cli-input-json "file://$WORK/project.json" >/dev/null 2>"$WORK/refused"; do
    tries=$((tries - 1))
    if [[ "$tries" == 0 ]] || ! grep -q 'sts:AssumeRole' "$WORK/refused"; then
      fail "the project was refused: $(cat "$WORK/refused")" "mend it and run this again: it goes on where it was"
    fi
    sleep 5
  done
}

make_webhook() {
  local filters='[[{"type": "EVENT", "pattern": "PUSH"}, {"type": "HEAD_REF", "pattern": "^refs/heads/'"$SOURCE_BRANCH"'$"}],
    [{"type": "EVENT", "pattern": "PUSH"}, {"type": "HEAD_REF", "pattern": "^refs/tags/v[0-9]"}]]'
  if [[ "$WEBHOOK" == no ]]; then
    if webhook_there "$NAME"; then aws codebuild delete-webhook --project-name "$NAME"; fi
    return 0
  fi
  say "== webhook"
  # Pushes only: a pull request of a stranger would run its own commands with this project's role.
  set_webhook "$NAME" --filter-groups "$filters"
}

# set_webhook PROJECT FLAGS...
set_webhook() {
  local project="$1" verb=create
  shift
  if webhook_there "$project"; then verb=update; fi
  aws codebuild "$verb-webhook" --project-name "$project" "$@" >/dev/null ||
    fail "GitHub could not be told" "give CodeBuild access to it first: https://docs.aws.amazon.com/codebuild/latest/userguide/access-tokens.html"
}

# A pull request can change every command of a build, so that its role must not be able to push, nor to write what a later
# build reads: no image, no cache, no artifact.
pull_request_policy() {
  cat <<EOF
{"Version": "2012-10-17", "Statement": [
  {"Sid": "Logs", "Effect": "Allow", "Action": ["logs:CreateLogStream", "logs:PutLogEvents"],
   "Resource": ["arn:$PARTITION:logs:$REGION:$ACCOUNT:log-group:/aws/codebuild/$NAME-pr:*"]},
  {"Sid": "Token", "Effect": "Allow", "Action": ["ecr:GetAuthorizationToken"], "Resource": ["*"]},
  {"Sid": "Bases", "Effect": "Allow", "Action": [
     "ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
   "Resource": [$(base_repositories)]},
  {"Sid": "Reports", "Effect": "Allow", "Action": [
     "codebuild:BatchPutTestCases", "codebuild:CreateReport", "codebuild:CreateReportGroup", "codebuild:UpdateReport"],
   "Resource": ["arn:$PARTITION:codebuild:$REGION:$ACCOUNT:report-group/$NAME-pr-image-tests"]}
]}
EOF
}

make_pull_requests() {
  if [[ "$PULL_REQUESTS" == no ]]; then
    delete_pull_requests
    return 0
  fi
  make_logs "$NAME-pr"
  make_role "$PR_ROLE" "$(trust codebuild.amazonaws.com "arn:$PARTITION:codebuild:$REGION:$ACCOUNT:project/$NAME-pr")" pr "$(pull_request_policy)"
  make_project "$NAME-pr" "$(pull_request_description)"
  say "== webhook of pull requests"
  # Of a fork, a build starts only after somebody with one of these roles has commented /codebuild_run(COMMIT).
  set_webhook "$NAME-pr" \
    --filter-groups '[[{"type": "EVENT", "pattern": "PULL_REQUEST_CREATED, PULL_REQUEST_UPDATED, PULL_REQUEST_REOPENED"},
      {"type": "BASE_REF", "pattern": "^refs/heads/'"$SOURCE_BRANCH"'$"}]]' \
    --pull-request-build-policy '{"requiresCommentApproval": "FORK_PULL_REQUESTS",
      "approverRoles": ["GITHUB_ADMIN", "GITHUB_MAINTAIN", "GITHUB_WRITE"]}'
}

# Whom a failed build is told to. Pull requests have their status on GitHub.
make_alerts() {
  if [[ "$ALERTS" == no ]]; then
    delete_alerts
    return 0
  fi
  local rule="$NAME-failed-builds"
  say "== topic $rule"
  aws sns create-topic --name "$rule" --tags "$(tags Key Value)" >/dev/null
  # No condition: EventBridge sends none of the keys that it could ask for, and every message would be dropped.
  aws sns set-topic-attributes --topic-arn "$TOPIC_ARN" --attribute-name Policy --attribute-value \
    '{"Version": "2012-10-17", "Statement": [{"Sid": "Rules", "Effect": "Allow",
      "Principal": {"Service": "events.amazonaws.com"}, "Action": "sns:Publish", "Resource": "'"$TOPIC_ARN"'"}]}'
  set_alert_email
  say "== rule $rule"
  aws events put-rule --name "$rule" --description "Tells of failed builds of $NAME" --state ENABLED --event-pattern \
    '{"source": ["aws.codebuild"], "detail-type": ["CodeBuild Build State Change"],
      "detail": {"build-status": ["FAILED", "FAULT", "TIMED_OUT"], "project-name": ["'"$NAME"'"]}}' >/dev/null
  aws events tag-resource --resource-arn "arn:$PARTITION:events:$REGION:$ACCOUNT:rule/$rule" --tags "$(tags Key Value)"
  aws events put-targets --rule "$rule" --targets '[{"Id": "topic", "Arn": "'"$TOPIC_ARN"'", "InputTransformer": {
    "InputPathsMap": {"log": "$.detail.additional-information.logs.deep-link", "project": "$.detail.project-name",
                      "status": "$.detail.build-status"},
    "InputTemplate": "\"The build of <project> ended with <status>. Its log: <log>\""}}]' >/dev/null
}

# set_alert_email: the address, and no other. One that was never confirmed goes by itself after three days.
set_alert_email() {
  local arn endpoint known=no
  while read -r arn endpoint; do
    if [[ -n "$ALERT_EMAIL" && "$endpoint" == "$ALERT_EMAIL" ]]; then
      known=yes
    elif [[ "$arn" == arn:* ]]; then
      aws sns unsubscribe --subscription-arn "$arn"
    fi
  done <<<"$(aws sns list-subscriptions-by-topic --topic-arn "$TOPIC_ARN" --output text \
    --query "Subscriptions[?Protocol=='email'].[SubscriptionArn, Endpoint]")"
  if [[ -n "$ALERT_EMAIL" && "$known" == no ]]; then
    aws sns subscribe --topic-arn "$TOPIC_ARN" --protocol email --notification-endpoint "$ALERT_EMAIL" >/dev/null
  fi
}

make_nightly() {
  if [[ "$NIGHTLY" == no ]]; then
    delete_nightly
    return 0
  fi
  local project="arn:$PARTITION:codebuild:$REGION:$ACCOUNT:project/$NAME"
  make_role "$NIGHTLY_ROLE" "$(trust events.amazonaws.com "arn:$PARTITION:events:$REGION:$ACCOUNT:rule/$NAME-nightly")" nightly \
    '{"Version": "2012-10-17", "Statement": [{"Sid": "Start", "Effect": "Allow", "Action": ["codebuild:StartBuild"], "Resource": ["'"$project"'"]}]}'
  say "== rule $NAME-nightly"
  aws events put-rule --name "$NAME-nightly" --description "Starts $NAME every night" --state ENABLED \
    --schedule-expression "$NIGHTLY_SCHEDULE" >/dev/null
  aws events tag-resource --resource-arn "arn:$PARTITION:events:$REGION:$ACCOUNT:rule/$NAME-nightly" --tags "$(tags Key Value)"
  aws events put-targets --rule "$NAME-nightly" --targets \
    "[{\"Id\": \"build\", \"Arn\": \"$project\", \"RoleArn\": \"arn:$PARTITION:iam::$ACCOUNT:role/$NIGHTLY_ROLE\"}]" >/dev/null
}

logs_there() {
  there aws logs describe-log-groups --log-group-name-prefix "/aws/codebuild/$1" \
    --query "logGroups[?logGroupName=='/aws/codebuild/$1'].logGroupName" --output text
}
role_there() { there aws iam get-role --role-name "$1" --output json; }
project_there() { there aws codebuild batch-get-projects --names "$1" --query 'projects[0].name' --output text; }
webhook_there() { there aws codebuild batch-get-projects --names "$1" --query 'projects[0].webhook.url' --output text; }
rule_there() { there aws events describe-rule --name "$1" --output json; }
topic_there() { there aws sns get-topic-attributes --topic-arn "$TOPIC_ARN" --output json; }

# is_ours WHAT COMMAND...: fails unless the tag Project, which the command asks for, says that this made it. What somebody
# else has under the same name is neither changed nor deleted. These are tagged in the moment they are made.
is_ours() {
  local what="$1" owner
  shift
  owner="$("$@" --output text)" || fail "it is not known who made the $what" "mend it and run this again"
  [[ "$owner" == "$NAME" ]] || fail "there is a $what that this did not make (its tag Project: '$owner')" \
    "choose another --name; or, if it shall be taken over, give it the tag Project=$NAME"
}
# nothing_of_others: before anything is made, changed or deleted.
nothing_of_others() {
  local role project
  if images_there; then
    is_ours "repository $NAME" aws ecr list-tags-for-resource \
      --resource-arn "arn:$PARTITION:ecr:$REGION:$ACCOUNT:repository/$NAME" --query "tags[?Key=='Project'].Value"
  fi
  for project in "$NAME" "$NAME-pr"; do
    if project_there "$project"; then
      is_ours "project $project" aws codebuild batch-get-projects --names "$project" \
        --query "projects[0].tags[?key=='Project'].value"
    fi
  done
  if topic_there; then
    is_ours "topic $NAME-failed-builds" aws sns list-tags-for-resource --resource-arn "$TOPIC_ARN" \
      --query "Tags[?Key=='Project'].Value"
  fi
  for role in "$BUILD_ROLE" "$NIGHTLY_ROLE" "$PR_ROLE"; do
    if role_there "$role"; then
      is_ours "role $role" aws iam list-role-tags --role-name "$role" --query "Tags[?Key=='Project'].Value"
    fi
  done
}

delete_role() {
  if ! role_there "$1"; then return 0; fi
  say "== deleting role $1"
  if there aws iam get-role-policy --role-name "$1" --policy-name "$2" --output json; then
    aws iam delete-role-policy --role-name "$1" --policy-name "$2"
  fi
  aws iam delete-role --role-name "$1"
}

delete_nightly() {
  delete_rule "$NAME-nightly" build
  delete_role "$NIGHTLY_ROLE" nightly
}

# delete_rule RULE TARGET
delete_rule() {
  if ! rule_there "$1"; then return 0; fi
  say "== deleting rule $1"
  aws events remove-targets --rule "$1" --ids "$2" >/dev/null
  aws events delete-rule --name "$1"
}

delete_alerts() {
  delete_rule "$NAME-failed-builds" topic
  if ! topic_there; then return 0; fi
  say "== deleting topic $NAME-failed-builds"
  aws sns delete-topic --topic-arn "$TOPIC_ARN"
}

delete_pull_requests() {
  delete_project "$NAME-pr"
  delete_role "$PR_ROLE" pr
  delete_logs "$NAME-pr"
}

delete_project() {
  if ! project_there "$1"; then return 0; fi
  if webhook_there "$1"; then aws codebuild delete-webhook --project-name "$1"; fi
  say "== deleting project $1"
  aws codebuild delete-project --name "$1"
}

delete_logs() {
  if ! logs_there "$1"; then return 0; fi
  say "== deleting log group /aws/codebuild/$1"
  aws logs delete-log-group --log-group-name "/aws/codebuild/$1"
}

create() {
  make_logs "$NAME"
  make_bucket
  make_repository
  BUILD_ROLE_ARN="arn:$PARTITION:iam::$ACCOUNT:role/$BUILD_ROLE"
  make_role "$BUILD_ROLE" "$(trust codebuild.amazonaws.com "arn:$PARTITION:codebuild:$REGION:$ACCOUNT:project/$NAME")" build "$(build_policy)"
  make_project "$NAME" "$(project_description)"
  make_webhook
  make_pull_requests
  make_alerts
  make_nightly
  local rule="" webhook=""
  if [[ "$NIGHTLY" == yes ]]; then rule="$NAME-nightly"; fi
  if [[ "$WEBHOOK" == yes ]]; then
    webhook="$(aws codebuild batch-get-projects --names "$NAME" --query 'projects[0].webhook.payloadUrl' --output text)"
  fi
  cat <<EOF
{"project": "$NAME", "repository_url": "$IMAGES_URL", "bucket": "$BUCKET", "log_group": "/aws/codebuild/$NAME",
 "build_role_arn": "$BUILD_ROLE_ARN", "nightly_rule": "$rule", "webhook_url": "$webhook"}
EOF
}

# In the order in which nothing that is left needs what is gone.
teardown() {
  keep_or_delete_data "$DELETE_DATA"
  delete_nightly
  delete_alerts
  delete_pull_requests
  delete_project "$NAME"
  delete_role "$BUILD_ROLE" build
  if images_there; then
    say "== deleting repository $NAME"
    aws ecr delete-repository --repository-name "$NAME" >/dev/null
  fi
  if bucket_there; then
    say "== deleting bucket $BUCKET"
    aws s3api delete-bucket --bucket "$BUCKET"
  fi
  delete_logs "$NAME"
  say "nothing of $NAME is left"
}

check_choices
WORK="$(mktemp -d)"
trap 'rm -rf "$WORK"' EXIT
have_aws
# Roles are of the whole account: with the region in their names, what is made in one region leaves the others alone.
BUILD_ROLE="$NAME-build-$REGION"
NIGHTLY_ROLE="$NAME-nightly-$REGION"
PR_ROLE="$NAME-pr-$REGION"
TOPIC_ARN="arn:$PARTITION:sns:$REGION:$ACCOUNT:$NAME-failed-builds"
nothing_of_others
"$command"
