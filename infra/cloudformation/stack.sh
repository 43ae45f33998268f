#!/usr/bin/env bash
# How does template.yaml become a stack, and how does it go again? One command each; running it again changes what differs.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck source=infra/lib.sh
source "$here/../lib.sh"

STACK="${STACK:-}"
PARAMETERS="${PARAMETERS:-$here/parameters.json}"
DELETE_DATA="${DELETE_DATA:-no}"
NAME=""

usage() {
  cat <<EOF
usage: stack.sh create|teardown [flags]   Each flag is also a variable; the flag wins.
  --parameters FILE  what to fill in, as in parameters.json     PARAMETERS   [$PARAMETERS]
  --stack NAME       of the stack                               STACK        [the parameter Name]
  --delete-data      teardown also deletes images and artifacts DELETE_DATA  [$DELETE_DATA]
Credentials and region are those of the AWS CLI.
EOF
}

command="${1:-}"
case "$command" in
  create | teardown) shift ;;
  -h | --help) usage; exit 0 ;;
  *) fail "there is no command '$command'" "stack.sh create, or stack.sh teardown; see --help" ;;
esac
while [[ $# -gt 0 ]]; do
  case "$1" in
    --parameters) value_of "$1" $#; PARAMETERS="$2"; shift 2 ;;
    --stack) value_of "$1" $#; STACK="$2"; shift 2 ;;
    --delete-data) DELETE_DATA=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) fail "there is no flag $1" "see stack.sh --help" ;;
  esac
done

create() {
  if grep -q 'github.com/OWNER/NAME' "$PARAMETERS"; then
    fail "$PARAMETERS still names https://github.com/OWNER/NAME.git" "write your repository there, or copy the file and say --parameters FILE"
  fi
  say "== stack $STACK"
  local verb=create answer
  if stack_there; then
    verb=update
    # Of a stack that could not be made, nothing is left but its name, and that cannot be updated.
    if [[ "$(told 'Stacks[0].StackStatus')" == ROLLBACK_COMPLETE ]]; then
      say "== deleting what is left of the attempt before"
      delete
      verb=create
    fi
  fi
  if answer="$(aws cloudformation "$verb-stack" --template-body "file://$here/template.yaml" --stack-name "$STACK" \
    --parameters "file://$PARAMETERS" --capabilities CAPABILITY_NAMED_IAM 2>&1)"; then
    aws cloudformation wait "stack-$verb-complete" --stack-name "$STACK" ||
      fail "the stack $STACK was not made" "see: aws cloudformation describe-stack-events --stack-name $STACK"
  elif ! grep -q 'No updates are to be performed' <<<"$answer"; then
    fail "$answer" "mend it and run this again"
  fi
  aws cloudformation describe-stacks --stack-name "$STACK" --output json \
    --query 'Stacks[0].Outputs[].{Output: OutputKey, Value: OutputValue}'
}

stack_there() { there aws cloudformation describe-stacks --stack-name "$STACK" --output json; }

# told QUERY: what CloudFormation says of the stack.
told() { aws cloudformation describe-stacks --stack-name "$STACK" --query "$1" --output text; }

teardown() {
  if ! stack_there; then
    say "nothing of $STACK is left"
    return 0
  fi
  # Data is deleted only of what this stack made, whatever the file says by now.
  local made
  made="$(told "Stacks[0].Parameters[?ParameterKey=='Name'].ParameterValue")"
  [[ "$made" == "$NAME" ]] || fail "the stack $STACK has the Name $made, and $PARAMETERS says $NAME" \
    "say --stack of the other, or --parameters FILE of this one"
  keep_or_delete_data "$DELETE_DATA"
  say "== deleting stack $STACK"
  delete
  say "nothing of $STACK is left"
}

delete() {
  aws cloudformation delete-stack --stack-name "$STACK"
  aws cloudformation wait stack-delete-complete --stack-name "$STACK" ||
    fail "the stack $STACK did not go" "see: aws cloudformation describe-stack-events --stack-name $STACK"
}

[[ -r "$PARAMETERS" ]] || fail "there is no file $PARAMETERS" "see stack.sh --help"
# The one parameter that the script itself needs, however the file is laid out: no name has a blank in it.
flat="$(tr -d '[:space:]' <"$PARAMETERS")"
NAME="$(sed -nE 's/.*"ParameterKey":"Name","ParameterValue":"([^"]*)".*/\1/p' <<<"$flat")"
if [[ -z "$NAME" && "$flat" == *'"ParameterKey":"Name"'* ]]; then
  fail "the parameter Name of $PARAMETERS cannot be read" "write it as parameters.json does"
fi
NAME="${NAME:-paceline-images}"
is_name Name "$NAME"
STACK="${STACK:-$NAME}"
WORK="$(mktemp -d)"
trap 'rm -rf "$WORK"' EXIT
have_aws
"$command"
