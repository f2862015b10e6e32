#!/bin/bash
# Submits the stages that a configuration's evaluation needs, each to start when the one before has ended with 0. Run
# it again after any stop: it leaves out what is complete, keeps what is queued or running, and submits the rest.
#
#   configs/slurm/chain.sh configs/phone-qwen3-8b-8x80gb.yaml [--run NAME] [section.key=value ...]
#   STAGES="critic critic_report" configs/slurm/chain.sh configs/phone-qwen3-8b-8x80gb.yaml
#   NODES=4 configs/slurm/chain.sh configs/phone-qwen3-8b-8x80gb.yaml
#
# NODES is how many nodes each stage gets that only samples; the others get one. SBATCH_ARGS goes to every sbatch, such
# as SBATCH_ARGS="--partition=a100 --account=me". A job is named after run and stage: one of that name, submitted from
# this folder, counts as this run's. --fresh and --repair are for jobs to act on: with either, complete stages are
# submitted too, each to one node, since a stage is begun again by one process.

set -euo pipefail
here=$(dirname "$0")
python=${PYTHON:-.venv/bin/python}
said=$("$python" -m stages.wiring.run_chain "$@")
{ read -r folder; read -r needed; } <<< "$said"
case " $* " in *" --fresh "* | *" --repair "*) again=1 ;; *) again= ;; esac

before=
for stage in ${STAGES:-$needed}; do
  name=$(basename "$folder")-$stage
  # Asked before its files are: a job that ends in between is a moment longer in the queue, and not made twice.
  # %F is the id that all jobs of an array share, %Z the job's folder, which sbatch notes without symbolic links.
  job=$(squeue --me --noheader --name="$name" --format="%F %Z" | awk -v here="$PWD" -v real="$(pwd -P)" '
    { id = $1; sub(/^[^ ]+ /, ""); if (($0 == here || $0 == real) && !found) found = id }
    END { print found }')               # read to its end: squeue would fail where nobody reads on
  if [ -n "$job" ]; then
    echo "$stage $job: queued or running already"
    before=$job
    continue
  fi
  if [ -z "$again" ] && [ -e "$folder/$stage/manifest.json" ]; then
    # A complete stage answers at once, and makes nothing. It refuses other settings or inputs than its own.
    code=0
    said=$("$python" -m "stages.$stage" "$@" 2>&1) || code=$?
    if [ "$code" -eq 0 ]; then
      echo "$stage: complete"
      continue
    elif [ -z "$before" ]; then       # nothing that still runs could change its inputs
      echo "$said" >&2
      exit "$code"
    fi
  fi
  array= join=
  case $stage in
    rollouts | labels | critic_report | evaluation)
      if [ "${NODES:-1}" -gt 1 ] && [ -z "$again" ]; then array=--array=0-$((NODES - 1)) join=--join; fi ;;
  esac
  # shellcheck disable=SC2086 - several arguments on purpose
  before=$(sbatch --parsable --job-name="$name" $array ${SBATCH_ARGS:-} \
    ${before:+--dependency=afterok:"$before"} --kill-on-invalid-dep=yes \
    "$here/stage.sbatch" "$stage" "$@" $join)
  before=${before%%;*}                # "id;cluster" where there are several
  echo "$stage $before: submitted"
done
if [ -z "$before" ]; then echo "all complete: $folder"; fi
