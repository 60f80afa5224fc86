#!/bin/bash
# Starts one run on several machines of a SLURM cluster: one process per machine, which uses all of its devices.
# UNTESTED on a cluster: the tests run it with stand-ins for sbatch and srun.
#
#     sbatch --nodes=4 --partition=gpu --account=lab launch/slurm.sh --config=configs/imagenet_resnet50.py --workdir=/shared/out/resnet50
#
# Options of sbatch come before the script, and take the place of those below: --partition, --account, --gpus-per-node,
# --cpus-per-task, --time. The repository's folder, with its .venv, and the run's folder must be on a file system that
# all machines share.
#SBATCH --job-name=train
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# One minute before the time limit this script gets SIGUSR1: the run saves and stops, and the job is requeued.
#SBATCH --signal=B:USR1@60
set -u

cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch from the repository}" || exit 1

# srun does not take over the CPUs that sbatch was asked for, and JAX takes one GPU a process under SLURM.
if [[ -n ${SLURM_CPUS_PER_TASK:-} ]]; then
    export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
fi
if [[ -n ${SLURM_GPUS_ON_NODE:-} ]]; then
    JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 "$((SLURM_GPUS_ON_NODE - 1))")
    export JAX_LOCAL_DEVICE_IDS
fi

trap 'kill -USR1 $! 2>/dev/null' USR1 TERM # srun passes SIGUSR1 on; at SIGTERM it would kill the processes
# --kill-on-bad-exit: when one process fails, the others need not wait for the runtime to notice.
srun --kill-on-bad-exit=1 .venv/bin/python train.py "$@" &
step=$!
wait $step
code=$?
if ((code > 128)) && kill -0 $step 2>/dev/null; then # the trap ended the wait, not the step
    wait $step
    code=$?
fi
case $code in
143 | 138 | 140) scontrol requeue "$SLURM_JOB_ID" ;; # SIGTERM, SIGUSR1 or SIGUSR2, with everything saved
esac
exit $code
