#pragma once
// Many requests on one backend: continuous batching on a thread of its own.
//
// submit() and cancel() may be called from any thread, also by a receiver. The events of a request come in order, on
// the engine's thread; the receiver must neither block nor throw. Every submitted request gets exactly one Finished, as
// its last event; it may come before submit() has returned.

#include "backend/backend.h"
#include "engine/prefix_cache.h"
#include "engine/proposer.h"
#include "engine/request.h"
#include "model/gpt_oss.h"

#include <array>
#include <cstdint>
#include <memory>

namespace nibble::engine {

struct EngineLimits {
  int64_t max_context = 0;       // --max-model-len: most prompt and generated tokens of one sequence together
  int max_sequences = 256;       // --max-num-seqs: running at the same time
  int max_batched_tokens = 256;  // --max-num-batched-tokens: in one step
  int64_t max_waiting = 1024;    // beyond those that run; further ones are refused
  int64_t kv_tokens = 0;         // positions in the KV cache, of all sequences and the prefix cache; 0: max_context
  int max_partial_prefills = 8;  // --max-num-partial-prefills: prompts read in parts at the same time
  int max_long_partial_prefills = 8;  // --max-long-partial-prefills: of them, those that are long
  int64_t long_prefill_tokens = 0;  // --long-prefill-token-threshold: more are long, and get at most as many in a step;
                                    // 0: none is
  double target_itl_seconds = 0;    // --target-itl: of a step that decodes beside prompts; 0: as Pace says; infinity:
                                    // steps are as long as the other limits allow, also those of prompts alone
  int max_logit_rows = 0;           // in one step, of tokens to draw and to score; 0: as many as may draw
  bool prefix_cache = true;
  SpeculationLimits speculation{};
  bool async_scheduling = true;  // step n + 1 is enqueued before the tokens of step n are read; for a backend that
                                 // computes while the host goes on (cuda), pure cost on one that does not (cpu)
};

// What the backend must provide: pages of full attention for kv_tokens; sliding pages for the windows of all running
// sequences, plus a quarter of the full ones for the prefix cache. Throws Error(kInvalidRequest) naming a limit that is
// out of range.
[[nodiscard]] model::StepLimits step_limits(const EngineLimits& limits, const backend::Dims& dims);

// What happened to guesses so far.
struct DraftStats {
  int64_t drafts = 0;  // one per sequence and step
  int64_t tokens = 0;
  int64_t accepted = 0;
  int places = 0;                                   // of the longest draft; 0: no speculation
  std::array<int64_t, kMostDrafted> accepted_at{};  // by place in the draft
};

// What the gauges and counters of /metrics show; a snapshot.
struct EngineStats {
  int64_t running = 0, waiting = 0;
  int64_t kv_page_tokens = backend::kPageTokens;
  int64_t kv_pages = 0, kv_pages_used = 0;          // full-attention pages; used: by sequences, not by the cache alone
  int64_t prefix_queries = 0, prefix_hits = 0;      // tokens
  int64_t prompt_tokens = 0, generated_tokens = 0;  // computed and drawn so far
  int64_t preemptions = 0, steps = 0;
  int64_t screened_steps = 0, screened_tiles = 0;  // backend::ScreenCounts
  DraftStats drafts{};
  double turn_seconds = 0;  // since the engine's thread last ended a step; 0: it waits for requests
};

class Engine {
 public:
  // The backend was made with backend_config(model.config, step_limits(limits, model.config.dims)). Backend and model
  // must outlive the engine. `kv_events`: called with what the prefix cache keeps and drops.
  Engine(backend::Backend& be, const model::GptOss& model, const EngineLimits& limits, KvEventSink kv_events = {});
  ~Engine();  // cancels running requests
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Throws Error(kInvalidRequest) if the request can never be served (empty or over-long prompt, ids outside the
  // vocabulary, parameters out of range, more than kMaxLogprobs), and Error(kBusy) if slots and queue are full. Then no
  // event comes.
  RequestId submit(Request request, Receiver receiver);
  // Ends it as kCancelled within one step. Ignored if it has finished.
  void cancel(RequestId id);
  [[nodiscard]] EngineStats stats() const;  // of the last step; whoever was told Finished finds that in it, too

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::engine
