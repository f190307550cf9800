#pragma once
// Ranks that sum and gather by writing into each other's mailboxes (README.md): kernels and their plans.
// A rank's launches meet the others' of the same kind and shape, in the same order; until these run, they wait.

#include "backend/cuda/comm/mailbox.h"
#include "backend/cuda/launch/launch.h"
#include "backend/cuda/norm_rope/around_gemm.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace nibble::backend::cuda {

// Values of a delta as they lie on the card, in whatever form: a delta is linear in each, so those of several ranks are
// just added, value by value. Of a short message, in floats, two more things may be done in the same launch.
struct DeltaValues {
  void* at = nullptr;
  int64_t count = 0;
  enum class Type : uint8_t { kF32, kBf16 } type = Type::kF32;
  const float* rest = nullptr;  // as many floats, each rank's: added to its values
  float* into = nullptr;        // as many floats: gets the sums added, and `at` is left alone
  // Each rank's are where PartPlaces says (share_box.h): with those who add them up, by shares; or all with all, who
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
void load_push_kernels();

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

}  // namespace nibble::backend::cuda
