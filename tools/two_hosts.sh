#!/bin/bash
# Two ranks in two network namespaces that see each other over a virtual cable: the least that is not localhost. They
# write the text of one process; a server of both outlives a client that is killed, and says so when a rank is killed,
# or stands still. Needs ip (iproute2; IP names another), and root where user namespaces are not allowed.
# By hand: tools/two_hosts.sh build/cpu/src/app/nibble
# With `cuda` behind it, on a machine with two cards: a card each, and NCCL over sockets as between two machines.
set -euo pipefail
nibble=$(realpath "${1:?want the path of nibble}")
backend=${2:-cpu}
export IP=${IP:-ip}
cd "$(dirname "$0")/.."
command -v "$IP" >/dev/null || { echo "want ip (apt install iproute2), found none at $IP"; exit 1; }
own=(unshare --user --map-root-user --net)
[ "$(id -u)" -ne 0 ] || own=(unshare --net)
[ -n "${TWO_HOSTS_INSIDE:-}" ] || TWO_HOSTS_INSIDE=1 exec "${own[@]}" "$0" "$nibble" "$backend"

work=$(mktemp -d)
unshare --net sleep 1000 &
other=$!
trap 'kill $(jobs -p) 2>/dev/null; cat "$work"/nccl.* 2>/dev/null >&2 || true; rm -r "$work"' EXIT
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
"$IP" link set lo up
"$IP" link add here type veth peer name there netns $other
"$IP" address add 10.9.0.1/24 dev here
"$IP" link set here up
nsenter --net=/proc/$other/ns/net sh -c '"$IP" link set lo up && "$IP" address add 10.9.0.2/24 dev there && "$IP" link set there up'
# NCCL takes no interface that is not running, and a second passes until the kernel says that both ends are.
up() { "$@" "$IP" -oneline link show type veth | grep -q 'state UP'; }
until up && up nsenter --net=/proc/$other/ns/net; do sleep 0.05; done

# A rank by its number and its end of the cable. By its host's name NCCL would take the cards' own link.
nibble() {
  local rank=$1 end=$2
  shift 2
  if [ "$backend" == cuda ]; then
    export CUDA_VISIBLE_DEVICES=$rank NCCL_HOSTID=$rank NCCL_SOCKET_IFNAME=$end NCCL_IB_DISABLE=1
    export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET=Socket
    export NCCL_DEBUG=WARN NCCL_DEBUG_FILE="$work/nccl.%p"  # else among the text
    set -- "$@" --backend cuda
  else
    set -- "$@" --moe-activation f32
  fi
  exec "$nibble" "$@"
}
there() { exec nsenter --net="/proc/$other/ns/net" bash -c 'nibble "$@"' bash 1 there "$@"; }
group() { echo --nnodes 2 --master-addr 10.9.0.1 --node-rank "$1"; }
run="run models/nibble-tiny -n 24 --temperature 0"
export nibble backend work
export -f nibble

(there $run $(group 1) -p "Once upon a time") &
follower=$!
together=$(nibble 0 here $run $(group 0) -p "Once upon a time")
wait $follower
alone=$(nibble 0 here $run -q -p "Once upon a time")
[ "$together" == "$alone" ] || { printf 'want the text of one process:\n%s\nfound:\n%s\n' "$alone" "$together"; exit 1; }
echo "two namespaces write the text of one process: $alone"

# ask <tokens>: the whole answer, head and body.
ask() {
  local body="{\"prompt\":\"Once upon a time\",\"max_tokens\":$1,\"temperature\":0,\"ignore_eos\":true}"
  exec 3<>/dev/tcp/127.0.0.1/8001
  printf 'POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' \
    "${#body}" "$body" >&3
  cat <&3
}
text_of() { sed -n 's/.*"text":"\([^"]*\)".*/\1/p' <<<"$1"; }
for signal in KILL STOP; do
  serve="serve models/nibble-tiny --host 127.0.0.1 --port 8001"
  (nibble 0 here $serve $(group 0)) >"$work/first" 2>&1 &
  first=$!
  (there serve models/nibble-tiny --headless $(group 1)) >"$work/second" 2>&1 &
  second=$!
  before=
  until [ -n "$before" ]; do  # while it loads it answers 503
    kill -0 $first 2>/dev/null || { echo "the first rank ended:"; cat "$work/first" "$work/second"; exit 1; }
    sleep 0.1
    before=$(text_of "$(ask 24 2>/dev/null || true)")
  done
  ask 20000 >/dev/null &
  client=$!
  sleep 0.5
  kill -KILL $client
  wait $client 2>/dev/null || true
  after=$(text_of "$(ask 24)")
  [ "$before" == "$after" ] || { echo "beside a killed client: want \"$before\", found \"$after\""; exit 1; }
  ask 20000 >"$work/open" &
  client=$!
  sleep 0.5
  began=$(date +%s%N)
  kill -$signal $second
  wait $client || true
  took=$((($(date +%s%N) - began) / 1000000))
  grep -q '^HTTP/1.1 503' "$work/open" || { echo "want 503 for an open request, found:"; head -c 300 "$work/open"; exit 1; }
  [ $took -lt 10000 ] || { echo "want 503 within 10 s, found $took ms"; exit 1; }
  status=0
  wait $first || status=$?
  [ $status == 5 ] || { echo "want exit code 5 of the first rank, found $status"; cat "$work/first"; exit 1; }
  kill -KILL $second 2>/dev/null || true
  wait $second 2>/dev/null || true
  echo "a killed client harmed nobody; SIG$signal to a rank: 503 after $took ms, exit code $status: $(tail -n 1 "$work/first")"
done
