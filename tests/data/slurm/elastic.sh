#!/bin/bash
#SBATCH --job-name=paceline-v1.2
#SBATCH --nodes=2
#SBATCH --ntasks=3
#SBATCH --distribution=arbitrary
#SBATCH --nodelist=h1,h1,h2
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/shared/jobs/v1.2.log
#SBATCH --partition=long
#SBATCH --account=ours
record=/shared/jobs/v1.2
printf '%s\n' h1 h1 h2 > "$record.hosts"
rm -f "$record.shrink"
export SLURM_HOSTFILE="$record.hosts" PACELINE_DEVICES="$SLURM_NTASKS"
export MASTER_ADDR=10.0.0.1
shrink() { # nodes that are to be given back; what is left starts again from the checkpoint
  [ -f "$record.shrink" ] || return 1
  mv "$record.shrink" "$record.hosts"
  nodes=$(uniq "$record.hosts" | paste -sd,)
  script=$(dirname "$record")/slurm_job_${SLURM_JOB_ID}_resize # which scontrol writes where it runs
  (cd "$(dirname "$record")" && scontrol update JobId="$SLURM_JOB_ID" NodeList="$nodes" > /dev/null) || return 1
  . "$script.sh"
  rm -f "$script.sh" "$script.csh"
}
ranks() {
  exec srun --distribution=arbitrary --nodes="$(uniq "$record.hosts" | wc -l)" --ntasks="$(wc -l < "$record.hosts")" \
    --kill-on-bad-exit=1 "$@"
}
export NOTE='it'"'"'s'
cd '/shared/my code' || exit 1
end=/shared/jobs/v1.2.end
rm -f "$end"
told=0
trap 'told=1; kill -s TERM "$child" 2>/dev/null' TERM
while :; do
  ranks /opt/bin/python -m paceline.scheduling.executors.rank /shared/jobs/v1.2.json &
  child=$!
  [ "$told" = 1 ] && kill -s TERM "$child" 2>/dev/null
  while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
  done
  [ "$told" = 1 ] && shrink || break
  told=0
done
echo "$told $code" > "$end.tmp" && mv "$end.tmp" "$end"
exit "$code"
