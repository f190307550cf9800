#include "backend/cuda/comm/comm.h"

#include "backend/cuda/dense/gemm_plan.h"
#include "base/error.h"

#include <algorithm>
#include <atomic>
#include <string_view>

namespace nibble::backend::cuda {
namespace {

void reach(int from, int to) {
  if (from == to) return;
  const CurrentDevice before;
  cuda_check(cudaSetDevice(from));
  int can = 0;
  cuda_check(cudaDeviceCanAccessPeer(&can, from, to));
  if (can == 0)
    throw Error(Code::kUnsupported,
                "cuda: want cards that reach each other's memory, found that card {} cannot card {}'s", from, to);
  const cudaError_t status = cudaDeviceEnablePeerAccess(to, 0);
  if (status != cudaErrorPeerAccessAlreadyEnabled) return cuda_check(status);
  cudaGetLastError();  // so that the next launch does not report it again
}

// On the current card.
DeviceBytes filled(int64_t bytes, std::string_view what, const void* begins) {
  DeviceBytes memory = allocate_device(bytes, what);
  const Stream stream = make_stream();
  cuda_check(begins == nullptr ? cudaMemsetAsync(memory.get(), 0, static_cast<size_t>(bytes), stream.get())
                               : cudaMemcpyAsync(memory.get(), begins, static_cast<size_t>(bytes),
                                                 cudaMemcpyHostToDevice, stream.get()));
  cuda_check(cudaStreamSynchronize(stream.get()));
  return memory;
}
DeviceBytes zeros(int64_t bytes, std::string_view what) { return filled(bytes, what, nullptr); }
template <class Rounds>
DeviceBytes begun(const Rounds& begins) {
  return filled(sizeof begins, "rounds of ranks", &begins);
}

}  // namespace

void PeerComm::reduce(const DeltaValues& values, const Launch& on) const {
  reduce_by(reduce_plan(values).way, values, on);
}

PartPlaces PeerComm::places() const {
  const ShareLink& shares = links_.shares;
  PartPlaces places{.shape = shares.shape, .rank = shares.rank};
  std::ranges::copy(shares.boxes, places.boxes);
  return places;
}

SumPlan PeerComm::reduce_plan(const DeltaValues& values) const {
  return plan_sum({.values = values, .ranks = ranks(), .ranks_on_card = ranks_on_card_, .sms = sms_});
}

void PeerComm::reduce_by(SumWay way, const DeltaValues& values, const Launch& on) const {
  using enum DeltaValues::Sending;
  check(way == SumWay::kPush || (values.rest == nullptr && values.into == nullptr && values.parts == nullptr),
        "long sums stand alone");
  check((values.sent == kToAll) == (way == SumWay::kExchange) && (values.sent != kToOwners || way == SumWay::kShares),
        "parts are sent as their sum wants them");
  switch (way) {
    case SumWay::kPush: return push(values, on);
    case SumWay::kShares: return share(values, on);
    case SumWay::kExchange: return barrier(on);
    case SumWay::kNccl: check(false, "NCCL is another's end");
  }
}

void PeerComm::push(const DeltaValues& values, const Launch& on) const {
  const int64_t words = values.words();
  for (int64_t at = 0; at < words; at += links_.push.shape.words) {
    const PushReduce::Args args{.link = links_.push,
                                .values = static_cast<uint32_t*>(values.at) + at,
                                .rest = values.rest == nullptr ? nullptr : values.rest + at,
                                .into = values.into == nullptr ? nullptr : values.into + at,
                                .words = std::min(words - at, links_.push.shape.words)};
    const Plan plan = plan_push(args.words, sms_, ranks_on_card_);
    if (values.parts == nullptr)
      PushReduce::launch(args, values.type, plan, on);
    else
      PushCombine::launch({args, {*values.parts, at / kVectorWords}}, plan, on);
  }
}

void PeerComm::share(const DeltaValues& values, const Launch& on) const {
  const int64_t words = values.words(), most = links_.shares.shape.words();
  const bool sent = values.sent == DeltaValues::Sending::kToOwners;
  check(!sent || words <= most, "what is sent before is one message");
  for (int64_t at = 0; at < words; at += most) {
    const ShareReduce::Args args{.link = links_.shares,
                                 .values = static_cast<uint32_t*>(values.at) + at,
                                 .words = std::min(words - at, most),
                                 .sent = sent};
    ShareReduce::launch(args, values.type, plan_shares(args.words, sms_, ranks_on_card_), on);
  }
}

void PeerComm::gather(const GatheredColumns& of, const Launch& on) const {
  check(std::ssize(of.columns) == ranks(), "columns of every rank");
  int64_t most = 1;
  for (const Range& columns : of.columns) most = std::max(most, columns.count);
  const int64_t at_once = std::max<int64_t>(1, links_.push.shape.words / most);
  const int64_t own = of.columns[static_cast<size_t>(rank())].count;
  for (int64_t row = 0; row < of.rows; row += at_once) {
    PushGather::Args args{.link = links_.push,
                          .own = of.own + row * own,
                          .all = of.all + row * of.width,
                          .rows = std::min(of.rows - row, at_once),
                          .width = of.width};
    for (size_t s = 0; s < of.columns.size(); ++s) {
      args.first[s] = of.columns[s].first;
      args.count[s] = of.columns[s].count;
    }
    PushGather::launch(args, plan_push(args.rows * most, sms_, ranks_on_card_), on);
  }
}

void PeerComm::pick(const Candidates& of, const Launch& on) const {
  PushPick::launch({.link = links_.push,
                    .value = of.value,
                    .token = of.token,
                    .tokens = of.tokens,
                    .rows = of.rows,
                    .parts = of.parts,
                    .pitch = of.pitch},
                   plan_pick(of.rows, sms_, ranks_on_card_), on);
}

void PeerComm::barrier(const Launch& on) const { PushBarrier::launch(links_.push, on); }

CommMemory::CommMemory(std::span<const int> cards)
    : shape_{.words = kMessageWords, .ranks = static_cast<int>(cards.size())} {
  if (shape_.ranks < 2 || shape_.ranks > kMaxPushRanks)
    throw Error(Code::kUnsupported, "cuda: want 2 to {} ranks, found {}", kMaxPushRanks, cards.size());
  share_shape_ = share_shape(shape_.ranks);
  given_up_ = allocate_pinned(sizeof(int), "a word for ranks that wait");
  *reinterpret_cast<int*>(given_up_.get()) = 0;
  for (const int card : cards) {
    for (const int other : cards) reach(card, other);
    const CurrentDevice before;
    cuda_check(cudaSetDevice(card));
    Own& own = ranks_.emplace_back();
    own.card = card;
    cuda_check(cudaDeviceGetAttribute(&own.sms, cudaDevAttrMultiProcessorCount, card));
    own.mailbox = zeros(shape_.bytes(), "what ranks send each other");
    PushRounds rounds{};
    std::ranges::fill(rounds.of_cta, kFirstRound);
    own.rounds = begun(rounds);
    own.box = zeros(share_shape_.bytes(), "what ranks send each other");
    if (const int64_t bytes = exchange_shape(shape_.ranks).bytes(); bytes > 0)
      own.exchange = allocate_device(bytes, "what ranks send each other");
    ShareRounds share_rounds{};
    std::ranges::fill(share_rounds.of_cta, uint64_t{1});
    own.share_rounds = begun(share_rounds);
    load_sum_kernels();
  }
}

PeerComm CommMemory::of(int rank) const {
  const Own& own = ranks_[static_cast<size_t>(rank)];
  const auto on_card = std::ranges::count_if(ranks_, [&](const Own& other) { return other.card == own.card; });
  const auto* const given_up = reinterpret_cast<const int*>(given_up_.get());
  PushLink push{.rounds = reinterpret_cast<PushRounds*>(own.rounds.get()),
                .shape = shape_,
                .rank = rank,
                .shares_card = on_card > 1,
                .given_up = given_up};
  ShareLink shares{.rounds = reinterpret_cast<ShareRounds*>(own.share_rounds.get()),
                   .shape = share_shape_,
                   .rank = rank,
                   .shares_card = on_card > 1,
                   .given_up = given_up};
  Exchange exchange{.shape = exchange_shape(shape_.ranks), .rank = rank};
  for (size_t r = 0; r < std::size(exchange.memory); ++r)
    exchange.memory[r] = reinterpret_cast<uint32_t*>(ranks_[r].exchange.get());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    push.mailboxes[r] = reinterpret_cast<uint64_t*>(ranks_[r].mailbox.get());
    shares.boxes[r] = reinterpret_cast<uint64_t*>(ranks_[r].box.get());
  }
  return {{push, shares, exchange}, own.sms, static_cast<int>(on_card)};
}

void CommMemory::give_up() const {
  std::atomic_ref(*reinterpret_cast<int*>(given_up_.get())).store(1, std::memory_order_release);
}

}  // namespace nibble::backend::cuda
