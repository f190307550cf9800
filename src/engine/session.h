#pragma once
// One sequence at a time on one backend: prefill in chunks, then decode. A prompt that begins like the last sequence
// reuses what the KV cache still holds of it.

#include "backend/backend.h"
#include "engine/request.h"
#include "model/gpt_oss.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace nibble::engine {

struct SessionLimits {
  int64_t max_context = 0;  // most prompt and generated tokens together
  int chunk_tokens = 0;     // most tokens in one step
  int max_logit_rows = 1;   // 1 to generate; chunk_tokens to score every token
};

[[nodiscard]] model::StepLimits step_limits(const SessionLimits& limits);

// Says whether to go on.
using OnToken = std::function<bool(int32_t token)>;
// Prompt tokens done so far, of all. Says whether to go on: else the request is cancelled with no token generated.
using OnPrefill = std::function<bool(int64_t done, int64_t total)>;

class Session {
 public:
  // The backend was made with backend_config(model.config, step_limits(limits)); both outlive the session.
  Session(backend::Backend& be, const model::GptOss& model, const SessionLimits& limits);

  // Throws Error(kInvalidRequest) when the request cannot be served: an empty prompt or one that leaves no room to
  // generate, token ids outside the vocabulary, sampling parameters out of range.
  Finished generate(const Request& request, const OnToken& on_token, const OnPrefill& on_prefill = {});

  // Runs `ids` as the whole sequence, nothing reused, and hands on the logits of every token, a chunk at a time:
  // rows [first, first + rows) of the sequence. REQUIRES max_logit_rows == chunk_tokens.
  using OnLogits = std::function<void(int64_t first, const backend::SlotData& logits)>;
  void score(std::span<const int32_t> ids, const OnLogits& on_logits);

  // The step that appends `ids` to the `computed` tokens of a sequence that owns the whole cache.
  [[nodiscard]] model::Step make_step(std::span<const int32_t> ids, int64_t computed) const;

 private:
  // `room`: tokens that must fit behind them.
  void check_tokens(std::span<const int32_t> ids, int64_t room) const;
  [[nodiscard]] int32_t step(std::span<const int32_t> ids, const backend::SampleRow* sample);

  backend::Backend& be_;
  const model::GptOss& model_;
  const SessionLimits limits_;
  std::vector<int32_t> computed_;  // tokens whose keys and values are in the cache
};

}  // namespace nibble::engine
