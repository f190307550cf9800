#pragma once
// How ranks on cards add up, gather and pick (README.md): the kernels, their plans, and which of the ways a message
// takes. A rank's launches meet the others' of the same kind and shape, in the same order; until these run, they wait.
// Plain C++.

#include "backend/cuda/comm/mailbox.h"
#include "backend/cuda/launch/launch.h"
#include "backend/cuda/norm_rope/around_gemm.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble::backend::cuda {

// Values of a delta as they lie on the card, in whatever form: a delta is linear in each, so those of several ranks are
// just added, value by value. Of a short message, in floats, two more things may be done in the same launch.
struct DeltaValues {
  void* at = nullptr;
  int64_t count = 0;
  enum class Type : uint8_t { kF32, kBf16 } type = Type::kF32;
  const float* rest = nullptr;  // as many floats, each rank's: added to its values
  float* into = nullptr;        // as many floats: gets the sums added, and `at` is left alone
  // Each rank's are where PartPlaces says (mailbox.h): with those who add them up, by shares; or all with all, who
  // read them there.
  enum class Sending : uint8_t { kNot, kToOwners, kToAll } sent = Sending::kNot;
  const Combine::Args* parts = nullptr;  // of short bf16 ones, still to be made of these; null: they are there

  [[nodiscard]] constexpr int64_t bytes() const { return (type == Type::kF32 ? 4 : 2) * count; }
  [[nodiscard]] constexpr int64_t words() const { return (bytes() + 3) / 4; }  // of 32 bits
};

inline constexpr int kMostPushCtas = 256;  // of a launch
// That fit a card at once, with those of the other ranks that share it.
[[nodiscard]] constexpr int most_ctas(int sms, int ranks_on_card) {
  return std::clamp(sms / ranks_on_card, 1, kMostPushCtas);
}

// In the rank's memory: which round a launch's CTA is in, for each it may have. All begin as kFirstRound. A CTA counts
// for itself, so that the end of a launch waits for no answer of memory; those that a launch has not are counted by its
// others.
struct PushRounds {
  uint32_t of_cta[kMostPushCtas];
};

// One rank's end of the exchange. The mailboxes begin as zeros.
struct PushLink {
  uint64_t* mailboxes[kMaxPushRanks] = {};  // of each rank, by rank; the own is written by the others
  PushRounds* rounds = nullptr;             // the rank's own
  MailboxShape shape;
  int rank = 0;
  bool shares_card = true;  // with another rank, whose launches need room while this one's wait
  // In the host's memory, not 0 once a rank has failed: who waits gives up, and leaves what it would have made
  // unspecified. Asked after so many looks that found nothing: it lies a microsecond away. Null: never.
  const int* given_up = nullptr;
  int looks_between = 4096;
};

inline constexpr int kVectorWords = 4;  // of a thread: 16 bytes of values, 32 of a mailbox

// values = Σ over ranks, in the order of the ranks: all get the same bits. bf16 is summed in f32 and rounded once.
// Floats: Σ of values + rest; and with `into`, into += Σ instead.
struct PushReduce {
  static constexpr Kernel kNames[] = {{"any_push_reduce<f32>"}, {"any_push_reduce<bf16>"}};
  [[nodiscard]] static constexpr Kernel name(DeltaValues::Type type) { return kNames[static_cast<size_t>(type)]; }
  struct Args {
    PushLink link;
    void* values = nullptr;  // 16-byte aligned, as rest and into
    const float* rest = nullptr;
    float* into = nullptr;
    int64_t words = 0;  // 32 bits each: one float or two bf16; a multiple of kVectorWords, at most link.shape.words
  };
  static void launch(const Args& args, DeltaValues::Type type, const Plan& plan, const Launch& on);
};

// What the rank's values are the sum of (around_gemm.h), where nobody has made them: then a launch adds that up on the
// way, in bf16, and values are out alone.
struct OwnParts {
  Combine::Args of;   // tiles: the message's values
  int64_t first = 0;  // vector of 16 bytes of the tiles that the message begins with
};
// Throws where the parts have another place than args.values, too.
struct PushCombine {
  [[nodiscard]] static constexpr Kernel name(SplitSums::Order order) {
    if (order == SplitSums::Order::kTiles) return {"any_push_combine<sums>"};
    return {order == SplitSums::Order::kExpertsF32 ? "any_push_combine<experts f32>"
                                                   : "any_push_combine<experts bf16>"};
  }
  struct Args {
    PushReduce::Args message;
    OwnParts parts;
  };
  static void launch(const Args& args, const Plan& plan, const Launch& on);
};

// all[r, first[s]..] = own[r,:] of rank s, for every rank s.
struct PushGather {
  static constexpr Kernel kName{"any_push_gather"};
  struct Args {
    PushLink link;
    const float* own = nullptr;                                    // [rows, count[rank]], 16-byte aligned
    float* all = nullptr;                                          // [rows, width], 16-byte aligned
    int64_t first[kMaxPushRanks] = {}, count[kMaxPushRanks] = {};  // columns, by rank; multiples of kVectorWords
    int64_t rows = 0, width = 0;
  };
  static void launch(const Args& args, const Plan& plan, const Launch& on);
};

// tokens[r] = that of the first of all ranks' candidates for row r, as before() of launch/warp.cuh ranks them: what one
// rank with all of them would take.
struct PushPick {
  static constexpr Kernel kName{"any_push_pick"};
  struct Args {
    PushLink link;
    const float* value = nullptr;    // [rows, pitch], the rank's own; parts of a row are candidates
    const int32_t* token = nullptr;  // [rows, pitch]; of the model's vocabulary, or kNotFinite, kNoToken
    int32_t* tokens = nullptr;       // [rows] out; kNothingAllowed where all are kNoToken
    int rows = 0, parts = 0, pitch = 0;
  };
  static void launch(const Args& args, const Plan& plan, const Launch& on);
};

// What a rank did before is done and seen by all others once they are past theirs.
struct PushBarrier {
  static constexpr Kernel kName{"any_push_barrier"};
  using Args = PushLink;
  static void launch(const Args& args, const Launch& on);
};
// Before the first launch: a kernel that is loaded late waits for those that run, which here wait for it.
void load_sum_kernels();

// Ranks that share a card share its SMs: all their launches must fit it at once.
inline constexpr int kPushThreads = 256;
// words: of the longest message of any rank.
[[nodiscard]] Plan plan_push(int64_t words, int sms, int ranks_on_card);
// A warp per row, or for several in turn.
[[nodiscard]] Plan plan_pick(int rows, int sms, int ranks_on_card);

struct PushCost {
  int64_t bytes = 0;  // that the rank sends the others: all its words, with their rounds
  int64_t flops = 0;
};
[[nodiscard]] PushCost cost(const PushReduce::Args& args);

// Throw Error(kUnsupported) that prints what a launch cannot serve.
void check_args(const PushReduce::Args& args);
void check_args(const PushCombine::Args& args);
void check_args(const PushGather::Args& args);
void check_args(const PushPick::Args& args);

// Shares, for long messages.

// In the rank's memory, as PushRounds; all begin as 1. A round of 64 bits never comes again.
struct ShareRounds {
  uint64_t of_cta[kMostPushCtas];
};

// One rank's end. The boxes begin as zeros.
struct ShareLink {
  uint64_t* boxes[kMaxPushRanks] = {};  // of each rank, by rank (mailbox.h)
  ShareRounds* rounds = nullptr;        // the rank's own
  ShareShape shape;
  int rank = 0;
  bool shares_card = true;  // this and what follows as PushLink's
  const int* given_up = nullptr;
  int looks_between = 4096;
};

// values = Σ over ranks, in the order of the ranks: all get the same bits. bf16 is summed in f32 and rounded once. The
// others write into values, too. sent: the parts are where PartPlaces says (mailbox.h), of bf16 alone.
struct ShareReduce {
  [[nodiscard]] static constexpr Kernel name(DeltaValues::Type type, bool sent) {
    if (sent) return {"any_share_sum<bf16>"};
    return {type == DeltaValues::Type::kF32 ? "any_share_reduce<f32>" : "any_share_reduce<bf16>"};
  }
  struct Args {
    ShareLink link;
    void* values = nullptr;  // 16-byte aligned, where all ranks' cards reach it
    int64_t words = 0;       // 32 bits each; a multiple of kVectorWords, at most link.shape.words()
    bool sent = false;
  };
  static void launch(const Args& args, DeltaValues::Type type, const Plan& plan, const Launch& on);
};

// A CTA per chunk, or as many as fit the card at once: they take turns. Two of a multiprocessor, where the rank has the
// card alone: a CTA waits for its chunk's words, for its flag to be after them, and for the others'.
inline constexpr int kShareCtas = 2;
[[nodiscard]] Plan plan_shares(int64_t words, int sms, int ranks_on_card);
// bytes: that the rank with most chunks sends the others, its parts, unless these are sent, and its sums.
[[nodiscard]] PushCost cost(const ShareReduce::Args& args);
// Throws Error(kUnsupported) that prints what a launch cannot serve.
void check_args(const ShareReduce::Args& args);

// Which way a message takes.

enum class SumWay : uint8_t {
  kPush,
  kShares,
  kNccl,
  kExchange,  // two ranks have sent each other their parts: they meet, and who reads the values adds them up
};

// Messages of so many bytes and more are too long for a push, whose every word carries a round and goes to every rank.
// µs on two H200 with NVLink at 369 KB, 1.5, 11.8 and 47 MB: push 5.7, 12.1, 88, 346, shares 8.6, 12.2, 42, 154, and
// where the parts were sent as they were made 7.3, 9.5, 26, 80, NCCL 2.28 9.5, 17.9, 56, 183
// (bench/results/2026-11-26-h200-x2-sent.json). A push that combines takes 17 (o's splits) and 29 (experts) at 1.5 MB,
// any_combine before shares 8 and theirs. More ranks are not measured: a push sends a message 2 (ranks - 1) times, the
// others less than twice.
[[nodiscard]] constexpr int64_t first_long_bytes(int ranks) {
  constexpr int64_t kKilo = 1024;
  return (ranks <= 2 ? 1024 : ranks <= 4 ? 256 : 128) * kKilo;
}

// How ranks that reach each other's memory add up what nobody has sent before.
[[nodiscard]] constexpr SumWay sum_way(int ranks, int64_t bytes) {
  return bytes >= first_long_bytes(ranks) ? SumWay::kShares : SumWay::kPush;
}

// Messages of so many bytes and more are exchanged by two ranks: of 120b 89 tokens. Two H200, µs a step: pushes that
// combine 748 at 64 tokens, 1077 at 128; combining and meeting 816 at 256
// (bench/results/2026-11-26-h200-x2-exchange.json).
inline constexpr int64_t kFirstExchangedBytes = 512 * 1024;

// Whether the kernel that makes bf16 values sends them, and to whom (mailbox.h PartPlaces): where shares take them in
// one message. Two ranks send all to each other: as many bytes as parts and sums of shares are.
[[nodiscard]] constexpr DeltaValues::Sending sent_as_made(int ranks, int64_t bytes) {
  using enum DeltaValues::Sending;
  if (bytes > 4 * share_shape(ranks).words()) return kNot;
  if (ranks == 2) return bytes >= kFirstExchangedBytes ? kToAll : kNot;
  return sum_way(ranks, bytes) == SumWay::kShares ? kToOwners : kNot;
}

inline constexpr int64_t kNcclBytes = int64_t{64} << 20;  // of one call
// Which of NCCL's kernels runs is its own choice; their names begin so.
[[nodiscard]] constexpr Kernel nccl_reduce_kernel() { return {"ncclDevKernel_AllReduce"}; }
[[nodiscard]] constexpr Kernel nccl_gather_kernel() { return {"ncclDevKernel_SendRecv"}; }

struct SumShape {
  DeltaValues values;  // wherever they are
  int ranks = 2, ranks_on_card = 1, sms = 1;
  bool by_nccl = false;                           // every message
  std::optional<SplitSums::Order> combines = {};  // the values are still to be made, of this
};
struct SumPlan {
  SumWay way;
  Kernel kernel;
  std::string tile;
  int64_t launches = 1;
  PushCost cost;  // of all launches: what the rank with most sends
};
// REQUIRES of what is combined that it is pushed, of what is sent that shares take it at once.
[[nodiscard]] SumPlan plan_sum(const SumShape& shape);
// The way of a kernel that plan_sum() names; none: it is another.
[[nodiscard]] std::optional<SumWay> way_of(std::string_view kernel);

}  // namespace nibble::backend::cuda
