# What the scripts of this folder share: how they talk and fail, and how data is deleted. Sourced, never run. The folder
# is complete in itself, so that it can be copied into the repository whose images are to be built.
# shellcheck shell=bash
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }

# fail WHAT HINT: one clear message, then the end.
fail() {
  printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
  exit 1
}

# value_of FLAG COUNT: fails unless a value stands behind the flag.
value_of() {
  [[ "$2" -ge 2 ]] || fail "$1 has no value" "write one behind $1, or see --help"
}

# matches FLAG VALUE PATTERN WHAT: fails unless the whole value is like that. Values go into JSON: no quote may pass.
matches() {
  # Without the user and the token that an address may have: messages end up in logs.
  [[ "$2" =~ ^($3)$ ]] || fail "$1 is '$(sed -E 's|://[^/]*@|://***@|g' <<<"$2")', but it must be $4" "see --help"
}

# between FLAG VALUE LOW HIGH: fails unless it is a whole number from LOW to HIGH.
between() {
  if ! [[ "$2" =~ ^(0|[1-9][0-9]{0,5})$ ]] || (($2 < $3 || $2 > $4)); then
    fail "$1 is '$2', but it must be a whole number from $3 to $4" "see --help"
  fi
}

# is_name FLAG VALUE: one of the names that everything can have.
is_name() {
  matches "$1" "$2" '[a-z][a-z0-9-]{1,30}[a-z0-9]' \
    "3 to 32 small letters, digits and hyphens, begin with a letter and not end with a hyphen"
}

# have_aws: is the AWS CLI there, with credentials and a region? Sets ACCOUNT, REGION, PARTITION, BUCKET for NAME.
have_aws() {
  command -v aws >/dev/null 2>&1 || fail "aws is not installed, or not on PATH" "pip install awscli"
  REGION="${AWS_REGION:-${AWS_DEFAULT_REGION:-$(aws configure get region || true)}}"
  [[ -n "$REGION" ]] || fail "there is no region" "export AWS_DEFAULT_REGION=us-east-1"
  export AWS_DEFAULT_REGION="$REGION" AWS_PAGER=""
  local caller
  caller="$(aws sts get-caller-identity --query Arn --output text)" ||
    fail "AWS does not know who asks" "sign in (aws sso login, aws configure), then see: aws sts get-caller-identity"
  # arn:PARTITION:sts::ACCOUNT:...
  # shellcheck disable=SC2034 # for those who source this
  PARTITION="$(cut -d: -f2 <<<"$caller")"
  ACCOUNT="$(cut -d: -f5 <<<"$caller")"
  BUCKET="$NAME-$ACCOUNT-$REGION"
}

# there COMMAND...: does what it describes exist? An answer "not found" is no; whatever else goes wrong is the end.
there() {
  local answer
  if answer="$("$@" 2>&1)"; then
    # batch-get-projects and describe-log-groups answer with nothing instead of an error.
    [[ -n "$answer" && "$answer" != None ]]
  elif grep -qE 'NotFound|NoSuchEntity|NoSuchBucket|Not Found|does not exist' <<<"$answer"; then
    return 1
  else
    fail "$answer" "mend it and run this again: it goes on where it was"
  fi
}

bucket_there() { there aws s3api get-bucket-location --bucket "$BUCKET" --output json; }
images_there() { there aws ecr describe-repositories --repository-names "$NAME" --output json; }

# data_left: how many versions of objects, and images, would go with it? Who may not look must not delete: inside of
# $(...) bash goes on after an error, so that each is made the end by hand.
data_left() {
  local objects=0 images=0
  if bucket_there; then
    objects="$(aws s3api list-object-versions --bucket "$BUCKET" --max-keys 1000 --no-paginate \
      --query 'length([Versions, DeleteMarkers][].Key)' --output text)" || exit 1
  fi
  if images_there; then
    images="$(aws ecr list-images --repository-name "$NAME" --query 'length(imageIds)' --output text)" || exit 1
  fi
  printf '%s\n' "$((objects + images))"
}

# empty_bucket: every version of every object, a thousand at a time.
empty_bucket() {
  local batch
  while :; do
    # shellcheck disable=SC2016 # the backquotes are those of the query
    batch="$(aws s3api list-object-versions --bucket "$BUCKET" --max-keys 1000 --no-paginate --output json \
      --query '{Quiet: `true`, Objects: [Versions, DeleteMarkers][].{Key: Key, VersionId: VersionId}}')"
    grep -q '"Key"' <<<"$batch" || return 0
    printf '%s' "$batch" >"$WORK/batch.json"
    aws s3api delete-objects --bucket "$BUCKET" --delete "file://$WORK/batch.json" >/dev/null
  done
}

# keep_or_delete_data DELETE: before anything is torn down.
keep_or_delete_data() {
  local left
  left="$(data_left)"
  if [[ "$left" == 0 ]]; then return 0; fi
  [[ "$1" == yes ]] || fail "there are images or artifacts left ($left or more)" \
    "keep what you need, then add --delete-data: it deletes every image of $NAME and everything in $BUCKET"
  if bucket_there; then
    say "== emptying $BUCKET"
    empty_bucket
  fi
  if images_there; then
    say "== deleting repository $NAME with its images"
    # With --force, because one by one images that an index refers to are refused.
    aws ecr delete-repository --repository-name "$NAME" --force >/dev/null
  fi
}
