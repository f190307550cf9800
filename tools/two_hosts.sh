#!/bin/bash
# Two ranks in two network namespaces that see each other over a virtual cable: the least that is not localhost. Needs ip
# (iproute2), and root where user namespaces are not allowed. By hand: tools/two_hosts.sh build/cpu/src/app/nibble
# With `cuda` behind it, on a machine with two cards: a card each, and NCCL over sockets as between two machines.
set -euo pipefail
nibble=$(realpath "${1:?want the path of nibble}")
backend=${2:-cpu}
cd "$(dirname "$0")/.."
command -v ip >/dev/null || { echo "want ip (apt install iproute2), found none"; exit 1; }
own=(unshare --user --map-root-user --net)
[ "$(id -u)" -ne 0 ] || own=(unshare --net)
[ -n "${TWO_HOSTS_INSIDE:-}" ] || TWO_HOSTS_INSIDE=1 exec "${own[@]}" "$0" "$nibble" "$backend"

unshare --net sleep 1000 &
other=$!
trap 'kill $other' EXIT
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
ip link set lo up
ip link add here type veth peer name there netns $other
ip address add 10.9.0.1/24 dev here
ip link set here up
nsenter --net=/proc/$other/ns/net sh -c 'ip link set lo up && ip address add 10.9.0.2/24 dev there && ip link set there up'

if [ "$backend" == cuda ]; then
  flags="--backend cuda"
  # By its host's name NCCL would take the cards' own link.
  rank() { CUDA_VISIBLE_DEVICES=$1 NCCL_HOSTID=$1 NCCL_SOCKET_IFNAME=$2 NCCL_IB_DISABLE=1 group "$1"; }
else
  flags="--moe-activation f32"
  rank() { group "$1"; }
fi
run() { "$nibble" run models/nibble-tiny -p "Once upon a time" -n 24 --temperature 0 $flags "${@}"; }
group() { run --nnodes 2 --master-addr 10.9.0.1 --node-rank "$1"; }
export nibble flags
export -f run group rank
nsenter --net=/proc/$other/ns/net bash -c 'rank 1 there' &
follower=$!
together=$(rank 0 here)
wait $follower
alone=$(run -q)
[ "$together" == "$alone" ] || { printf 'want the text of one process:\n%s\nfound:\n%s\n' "$alone" "$together"; exit 1; }
echo "two namespaces write the text of one process: $alone"
