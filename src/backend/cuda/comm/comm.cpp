#include "backend/cuda/comm/comm.h"

#include "base/error.h"

#include <algorithm>
#include <atomic>

namespace nibble::backend::cuda {
namespace {

int64_t words_of(const DeltaValues& values) {
  return values.type == DeltaValues::Type::kF32 ? values.count : (values.count + 1) / 2;
}

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

}  // namespace

void Comm::reduce(const DeltaValues& values, const Launch& on) const {
  const int64_t words = words_of(values);
  for (int64_t at = 0; at < words; at += link_.shape.words) {
    const PushReduceArgs args{.link = link_,
                              .values = static_cast<uint32_t*>(values.at) + at,
                              .words = std::min(words - at, link_.shape.words)};
    reduce_by_push(args, values.type, plan_push(args.words, sms_, ranks_on_card_), on);
  }
}

PushPlan Comm::reduce_plan(const DeltaValues& values) const {
  return plan_push(std::min(words_of(values), link_.shape.words), sms_, ranks_on_card_);
}

PushCost Comm::reduce_cost(const DeltaValues& values) const {
  return cost(PushReduceArgs{.link = link_, .words = words_of(values)});
}

int64_t Comm::rounds(const DeltaValues& values) const {
  return (words_of(values) + link_.shape.words - 1) / link_.shape.words;
}

void Comm::gather(const Columns& of, const Launch& on) const {
  check(std::ssize(of.columns) == ranks(), "columns of every rank");
  int64_t most = 1;
  for (const Range& columns : of.columns) most = std::max(most, columns.count);
  const int64_t at_once = std::max<int64_t>(1, link_.shape.words / most);
  const int64_t own = of.columns[static_cast<size_t>(rank())].count;
  for (int64_t row = 0; row < of.rows; row += at_once) {
    PushGatherArgs args{.link = link_,
                        .own = of.own + row * own,
                        .all = of.all + row * of.width,
                        .rows = std::min(of.rows - row, at_once),
                        .width = of.width};
    for (size_t s = 0; s < of.columns.size(); ++s) {
      args.first[s] = of.columns[s].first;
      args.count[s] = of.columns[s].count;
    }
    gather_by_push(args, plan_push(args.rows * most, sms_, ranks_on_card_), on);
  }
}

void Comm::barrier(const Launch& on) const { meet_by_push(link_, on); }

CommMemory::CommMemory(std::span<const int> cards, int64_t message_words)
    : shape_{.words = message_words, .ranks = static_cast<int>(cards.size())} {
  if (shape_.ranks < 2 || shape_.ranks > kMaxPushRanks)
    throw Error(Code::kUnsupported, "cuda: want 2 to {} ranks, found {}", kMaxPushRanks, cards.size());
  check(message_words > 0 && message_words % kSweptWords == 0, "mailboxes of whole 256 words");
  given_up_ = allocate_pinned(sizeof(int), "a word for ranks that wait");
  *reinterpret_cast<int*>(given_up_.get()) = 0;
  for (const int card : cards) {
    for (const int other : cards) reach(card, other);
    const CurrentDevice before;
    cuda_check(cudaSetDevice(card));
    Own& own = ranks_.emplace_back();
    own.card = card;
    cuda_check(cudaDeviceGetAttribute(&own.sms, cudaDevAttrMultiProcessorCount, card));
    own.mailbox = allocate_device(shape_.bytes(), "what ranks send each other");
    own.counter = allocate_device(sizeof(PushCounter), "rounds of ranks");
    const Stream stream = make_stream();
    cuda_check(cudaMemsetAsync(own.mailbox.get(), 0, static_cast<size_t>(shape_.bytes()), stream.get()));
    const PushCounter begins{.round = kFirstRound, .finished = 0};
    cuda_check(cudaMemcpyAsync(own.counter.get(), &begins, sizeof begins, cudaMemcpyHostToDevice, stream.get()));
    cuda_check(cudaStreamSynchronize(stream.get()));
    load_push_kernels();
  }
}

Comm CommMemory::of(int rank) const {
  const Own& own = ranks_[static_cast<size_t>(rank)];
  PushLink link{.counter = reinterpret_cast<PushCounter*>(own.counter.get()), .shape = shape_, .rank = rank};
  link.given_up = reinterpret_cast<const int*>(given_up_.get());
  for (size_t r = 0; r < ranks_.size(); ++r) link.mailboxes[r] = reinterpret_cast<uint64_t*>(ranks_[r].mailbox.get());
  const auto on_card = std::ranges::count_if(ranks_, [&](const Own& other) { return other.card == own.card; });
  link.shares_card = on_card > 1;
  return {link, own.sms, static_cast<int>(on_card)};
}

void CommMemory::give_up() const {
  std::atomic_ref(*reinterpret_cast<int*>(given_up_.get())).store(1, std::memory_order_release);
}

}  // namespace nibble::backend::cuda
