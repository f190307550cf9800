#pragma once
// What a card keeps of an EAGLE-3 head besides its weights: one allocation, whose declaration also gives its size.
// Plain C++.

#include "backend/cuda/eagle3/kernels.h"
#include "backend/backend.h"
#include "backend/draft_head.h"
#include "backend/run_config.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nibble::backend::cuda {

struct Eagle3Setup {
  int device = 0;
  int64_t rows = 0;    // that it has room for, of all sequences: rounded up to whole pages
  int sequences = 64;  // likewise
  bool graphs = true;  // drafts of a size that was seen before are replayed
};

inline constexpr int kEagle3MostDraft = 64;  // tokens of a sequence

struct Eagle3Memory {
  static constexpr int64_t kTokens = kEagle3MostTokens;                        // of a pass
  static constexpr int64_t kDraftRows = kEagle3MostTokens * kEagle3MostDraft;  // of a draft

  float* taps = nullptr;           // [tokens, taps * target hidden]; of a head with a mask token one row more, its own
  Bf16* rounded_taps = nullptr;    // likewise
  float* feature = nullptr;        // [tokens, hidden]
  float* residual = nullptr;       // likewise
  float* kept = nullptr;           // [sequences, hidden] residual of the last row of each
  Bf16* x = nullptr;               // [tokens, 2 * hidden]
  Bf16* normed = nullptr;          // [tokens, hidden]
  float* q = nullptr;              // [tokens, heads * head_dim]
  Bf16* attended = nullptr;        // likewise
  Bf16* gated = nullptr;           // [tokens, inter]
  Eagle3Best* best = nullptr;      // [tokens, row tiles of lm_head]
  float* cosine = nullptr;         // [draft rows, head_dim / 2]
  float* sine = nullptr;           // likewise
  float* parts = nullptr;          // of attention's splits
  int* finished = nullptr;         // [tokens * heads] zero
  int32_t* drafts = nullptr;       // [draft rows]
  int32_t* inputs = nullptr;       // [inputs_capacity()]
  std::vector<Eagle3Pages> pages;  // of each layer
  int64_t bytes = 0;

  // Row tables of a draft, and the pages of all its sequences.
  [[nodiscard]] static int64_t inputs_capacity(const Eagle3Setup& setup);
};
[[nodiscard]] constexpr int64_t eagle3_pages(const Eagle3Setup& setup) {
  return (setup.rows + kEagle3PageRows - 1) / kEagle3PageRows;
}
// Without a base it only measures.
[[nodiscard]] Eagle3Memory carve(const HeadWeights& head, const Eagle3Setup& setup, int multiprocessors,
                                 std::byte* base);
// Of a backend that is configured so: room for the rows of as many tokens as its full layers' pages.
[[nodiscard]] Eagle3Setup head_setup(const BackendConfig& config, const RunConfig& run, int device);
// On the card, in bf16.
[[nodiscard]] int64_t eagle3_weight_bytes(const HeadWeights& head);
// Throws Error(kUnsupported), naming it, for a head whose shapes the kernels do not take.
void require_eagle3_shapes(const HeadWeights& head);

}  // namespace nibble::backend::cuda
