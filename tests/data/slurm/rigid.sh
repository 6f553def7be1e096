#!/bin/bash
#SBATCH --job-name=paceline-job
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --distribution=arbitrary
#SBATCH --nodelist=h1,h2
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=/shared/jobs/job.log
record=/shared/jobs/job
printf '%s\n' h1 h2 > "$record.hosts"
rm -f "$record.shrink"
export SLURM_HOSTFILE="$record.hosts" PACELINE_DEVICES="$SLURM_NTASKS"
export MASTER_ADDR=10.0.0.1
cd /shared || exit 1
end=/shared/jobs/job.end
rm -f "$end"
told=0
trap 'told=1; kill -s USR1 "$child" 2>/dev/null' USR1
while :; do
  sh -c 'train.sh --save here' &
  child=$!
  [ "$told" = 1 ] && kill -s USR1 "$child" 2>/dev/null
  while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
  done
  [ "$told" = 1 ] && false || break
  told=0
done
echo "$told $code" > "$end.tmp" && mv "$end.tmp" "$end"
exit "$code"
