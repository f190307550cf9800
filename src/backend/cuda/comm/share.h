#pragma once
// Ranks that add up a long message by shares (README.md). A rank's launches meet the
// others' of the same shape, in the same order; until these run, they wait.

#include "backend/cuda/comm/push.h"
#include "backend/cuda/comm/share_box.h"
#include "backend/cuda/launch/launch.h"

#include <cstdint>

namespace nibble::backend::cuda {

// In the rank's memory, as PushRounds; all begin as 1. A round of 64 bits never comes again.
struct ShareRounds {
  uint64_t of_cta[kMostPushCtas];
};

// One rank's end. The boxes begin as zeros.
struct ShareLink {
  uint64_t* boxes[kMaxPushRanks] = {};  // of each rank, by rank (share_box.h)
  ShareRounds* rounds = nullptr;        // the rank's own
  ShareShape shape;
  int rank = 0;
  bool shares_card = true;  // this and what follows as PushLink's
  const int* given_up = nullptr;
  int looks_between = 4096;
};

// values = Σ over ranks, in the order of the ranks: all get the same bits. bf16 is summed in f32 and rounded once. The
// others write into values, too. sent: the parts are where PartPlaces says (share_box.h), of bf16 alone.
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

// Before the first launch, as load_push_kernels().
void load_share_kernels();

}  // namespace nibble::backend::cuda
