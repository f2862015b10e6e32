#!/bin/bash
# Submits the stages of a configuration, each to start when the one before has ended with 0.
#
#   configs/slurm/chain.sh configs/phone-qwen3-8b-8x80gb.yaml [--run NAME] [section.key=value ...]
#   STAGES="critic critic_report" configs/slurm/chain.sh configs/phone-qwen3-8b-8x80gb.yaml
#   NODES=4 configs/slurm/chain.sh configs/phone-qwen3-8b-8x80gb.yaml
#
# NODES is how many nodes each stage gets that only samples; the others get one.
# SBATCH_ARGS goes to every sbatch, such as SBATCH_ARGS="--partition=a100 --account=me".

set -eu
here=$(dirname "$0")
before=
for stage in ${STAGES:-tasks sft rollouts labels critic critic_report stored actor evaluation}; do
  array= join=
  case $stage in
    rollouts | labels | critic_report | evaluation)
      if [ "${NODES:-1}" -gt 1 ]; then array=--array=0-$((NODES - 1)) join=--join; fi ;;
  esac
  # shellcheck disable=SC2086 - several arguments on purpose
  before=$(sbatch --parsable --job-name="$stage" $array ${SBATCH_ARGS:-} \
    ${before:+--dependency=afterok:"$before"} --kill-on-invalid-dep=yes \
    "$here/stage.sbatch" "$stage" "$@" $join)
  before=${before%%;*}                # "id;cluster" where there are several
  echo "$stage $before"
done
