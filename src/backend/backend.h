#pragma once
// The waist between model and hardware: weights go in once, then eight stage verbs per step.
// A stage is the largest unit a backend may fuse without the model knowing.
// Formulas: openai/gpt-oss torch/model.py. tokens = the step's tokens; all other names are in dims.h.

#include "backend/args.h"
#include "backend/dims.h"
#include "backend/draw.h"
#include "backend/plan.h"
#include "backend/weights.h"

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace nibble::backend {

enum class KernelFamily : uint8_t;

// A head is a model of one layer, or few, that drafts for another one, its target (EAGLE-3): what it reads beside
// tokens are the target's residual streams (its taps). What that changes of the verbs:
//   embed    feature = fc · norm(taps), of ids below 0 what the last logits() left in that row; residual = feature
//   attn_in  of layer 0: qkv = W·[rmsnorm(embedding) ⊙ norm, rmsnorm(residual) ⊙ hidden_norm] + b
//   route    one expert takes all tokens, with weight 1: there is no router
//   moe      u = silu(gate) * up
//   logits   also leaves each row's feature for the next step: its residual, or what it has been normed to
//   sample   a row of logits is a token of target_ids
struct HeadConfig {
  int64_t taps = 0, target_hidden = 0, target_vocab = 0;  // target_vocab: rows of its embedding
  bool fc = true;                                         // false: the feature is the normed tap
  int64_t tap_norms = 0;              // 0: none; 1: of all taps together; else of each. kTapNorm has their scales
  float tap_eps = 0;                  // of these
  bool norm_before_residual = false;  // layer 0: residual = rmsnorm(feature) ⊙ hidden_norm
  bool norm_output = false;           // a row's feature has been normed
  std::vector<int32_t> target_ids{};  // [dims.vocab], which is the head's; empty: the same

  [[nodiscard]] int32_t target_id(int32_t row) const {
    return row < 0 || target_ids.empty() ? row : target_ids[static_cast<size_t>(row)];
  }
};

// Everything a backend must know before the first weight. Fixed for its life.
struct BackendConfig {
  Dims dims;
  std::vector<LayerKind> layer_kinds;    // [layers]
  std::vector<int64_t> layer_experts{};  // experts_of
  std::vector<float> rope_inv_freq;      // [head_dim / 2], radians per position
  float rope_concentration = 1.0f;       // multiplies cos and sin
  float rms_eps = 1e-5f;
  float swiglu_limit = 7.0f;
  DenseFormats dense;
  int max_tokens = 0;                           // most tokens in a step
  int max_rows = 0;                             // most rows of logits in a step
  std::array<int32_t, kLayerKinds> kv_pages{};  // pages of each kind, by LayerKind
  std::optional<Range> own_experts{};           // of one rank of several: moe() sums over these alone; none: over all
  // Boundaries of layers, rising, at which each step leaves the residual stream of its tokens for copy_taps(), where
  // the backend can: b lies before layer b, `layers` after the last.
  std::vector<int> taps{};
  std::optional<HeadConfig> head{};  // none: a model of its own
};

// What a backend of a configuration allocates, computed before it does.
struct MemoryNeeds {  // bytes
  int64_t weights = 0;
  int64_t kv = 0;
  int64_t activations = 0;
  int64_t graphs = 0;  // of captured steps
  int64_t upload = 0;  // pinned or staging memory while loading

  [[nodiscard]] constexpr int64_t total() const { return weights + kv + activations + graphs + upload; }
};

// What one rank of several is told. Its uploads are slices (HostWeight), but the embedding is whole.
struct Shard;
[[nodiscard]] BackendConfig config_of(BackendConfig config, const Shard& shard);

// row_bytes: of a head of a token, of its key or its value (kv_dtype.h). Throws Error(kUnsupported) beyond 2^63.
[[nodiscard]] int64_t kv_bytes(const BackendConfig& config, int64_t row_bytes);
// All slots, each value of them so large.
[[nodiscard]] int64_t slot_bytes(const BackendConfig& config, int64_t value_bytes);

// Activations between verbs: owned by the backend, declared here once. Nothing else outlives a verb but the KV cache.
enum class Slot : uint8_t {
  kResidual,       // [tokens, hidden]
  kDelta,          // [tokens, hidden] what the residual gets next. Where several cards share a step, each makes a part
                   // of it, and here the parts are reduced. A backend may hold it as parts that its reader adds up.
  kNormed,         // [tokens, hidden]
  kQkv,            // [tokens, (heads + 2 * kv_heads) * head_dim], before rope; unspecified after attend
  kQ,              // [tokens, heads * head_dim], after rope
  kAttn,           // [tokens, heads * head_dim]
  kRouterLogits,   // [tokens, experts]
  kExpertIds,      // [tokens, topk], by falling logit
  kExpertWeights,  // [tokens, topk]
  kExpertHidden,   // [tokens, topk, inter]
  kLogits,         // [logit rows, vocab]
};
inline constexpr int kSlots = static_cast<int>(Slot::kLogits) + 1;

struct SlotData {
  Shape shape;
  std::vector<float> values;
};
// A slot's rows where they lie, in the type that the backend computes with.
using SlotRows = std::variant<std::vector<std::span<float>>, std::vector<std::span<double>>>;

using Ticket = int64_t;
using TapTicket = int64_t;

// A step that has been enqueued; the ticket of what it samples.
struct StepRun {
  std::optional<Ticket> ticket;
};

struct KernelLaunches {
  std::string_view kernel;
  int64_t count = 0;
};

// Called behind each stage of a step; layer is -1 outside the layers.
using AfterStage = std::function<void(Stage stage, int layer)>;

class Backend {
 public:
  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  [[nodiscard]] virtual std::string_view name() const = 0;
  // For people: which kernels compute, as the options were resolved.
  [[nodiscard]] virtual std::string modes() const { return std::string(name()); }

  // Shapes and types must be the role's (the manifest has checked them). A host backend keeps the view: the caller
  // keeps the bytes alive and unchanged as long as the backend; for another, until finish_upload(). Throws
  // Error(kUnsupported) for a format that this backend does not read.
  virtual WeightHandle upload(const HostWeight& weight) = 0;

  // After the last upload, before the first step: waits until all weights are in place. Throws what went wrong with
  // any of them.
  virtual void finish_upload() {}

  // Between steps. Page `to` becomes what the steps so far made of page `from`.
  virtual void copy_page(const PageCopy& copy) = 0;

  // A whole step: a backend that compiles its steps, or shares them, runs it here; `after`, if any, sees by peek() what
  // each stage has left, maybe on another thread. None: begin() and the verbs follow.
  virtual std::optional<StepRun> run(const StepArgs& /*step*/, const AfterStage& /*after*/) { return std::nullopt; }
  // Before the verbs of a step that is walked: all that they will be told.
  virtual void begin(const StepArgs& /*step*/) {}

  // The verbs. Throw Error(kUnsupported) where run() has whole steps alone.

  // residual = table[ids]; delta = 0
  virtual void embed(const EmbedArgs& /*args*/) { refuse_verb(); }
  // residual += delta; normed = rmsnorm(residual) ⊙ norm; qkv = normed·Wᵀ + b
  virtual void attn_in(const AttnInArgs& /*args*/) { refuse_verb(); }
  // rope on q and k (halves d, d + head_dim/2); k, v → cache; attn = softmax([q·k / sqrt(head_dim), sink]) · v over the
  // row's visible keys; the sink has no value. Rope and the write are meant by this verb, but a backend may do them in
  // an earlier launch of the same step (backend/cuda/norm_rope/README.md says where it does).
  virtual void attend(const AttendArgs& /*args*/) { refuse_verb(); }
  // delta = attn·Woᵀ + bo
  virtual void attn_out(const AttnOutArgs& /*args*/) { refuse_verb(); }
  // residual += delta; normed = rmsnorm(residual) ⊙ norm; logits = normed·Wrᵀ + br; ids = topk, weights = softmax over
  // the topk
  virtual void route(const RouteArgs& /*args*/) { refuse_verb(); }
  // h = W1[e]·normed + b1[e]; glu = min(h[0::2], L), lin = clamp(h[1::2], ±L); u = glu·sigmoid(1.702·glu)·(lin + 1);
  // delta = Σ w_e (W2[e]·u + b2[e])
  virtual void moe(const MoeArgs& /*args*/) { refuse_verb(); }
  // residual += delta; logits = (rmsnorm(residual[tokens]) ⊙ norm) · tableᵀ
  virtual void logits(const LogitsArgs& /*args*/) { refuse_verb(); }
  // Draws one token per row of logits (sampling.h). The logits slot is unspecified afterwards.
  virtual Ticket sample(const SampleArgs& /*args*/) { refuse_verb(); }

  // What the ticket's rows drew. Tickets are read once and in order; two may be outstanding: a step's, and that of the
  // step enqueued after it.
  [[nodiscard]] virtual std::vector<DrawnToken> wait(Ticket ticket) = 0;
  // Whether each step leaves the residual stream at these boundaries. Else peek() shows residual and delta of a step
  // that is walked.
  [[nodiscard]] virtual bool keeps_taps(std::span<const int> /*boundaries*/) const { return false; }
  // Enqueues a copy to the host of what the last step left so. Two may be outstanding. REQUIRES keeps_taps().
  [[nodiscard]] virtual TapTicket copy_taps();
  // [tokens, taps, hidden] of the ticket's step: waits for it. Its bytes are overwritten by the second copy after it.
  [[nodiscard]] virtual std::span<const float> wait_taps(TapTicket ticket);

  // A copy of an activation, after all verbs so far; of no shape where the backend has fused it away, so that it is
  // never written, and where no rank of several has all of it. For tests, compare, perplexity, taps.
  [[nodiscard]] virtual SlotData peek(Slot slot) = 0;
  // kDelta and kLogits, after all verbs so far: what ranks that share a step sum and gather in place (ranks/member.h).
  // Throws Error(kUnsupported) where the backend cannot be such a rank. The reference gives every slot.
  [[nodiscard]] virtual SlotRows rows(Slot slot);

  // None: a host's verbs are done when they return, so their callers can time them.
  [[nodiscard]] virtual KernelProfiler* kernel_profiler() { return nullptr; }

  // A device's kernels that have run so far, with how often; those of the first, where several share a step. Of a CPU:
  // the instruction sets whose functions have multiplied, as those say, each once.
  [[nodiscard]] virtual std::vector<KernelLaunches> launches() const { return {}; }
  [[nodiscard]] virtual int64_t graph_replays() const { return 0; }
  // So far; steps that are under way may be in it.
  [[nodiscard]] virtual ScreenCounts screen_counts() const { return {}; }
  [[nodiscard]] virtual KernelFamily kernel_family() const;  // what kAuto became, on a device

 private:
  [[noreturn]] void refuse_verb() const;
};

// A step's verbs, one after the other, with `after` behind each. REQUIRES begin(). The ticket is of what it samples.
std::optional<Ticket> walk(Backend& be, const StepArgs& step, std::span<const LayerKind> layer_kinds,
                           const AfterStage& after = {});

[[nodiscard]] std::string_view name_of(Slot slot);

}  // namespace nibble::backend
