#include "backend/cuda/eagle3/card_runner.h"

#include "backend/cuda/card/device.h"
#include "backend/cuda/eagle3/card_weights.h"
#include "backend/cuda/eagle3/row_window.h"
#include "backend/cuda/launch/launchers.h"
#include "backend/cuda/memory/staging.h"
#include "backend/cuda/program/step_graph.h"
#include "base/error.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {
namespace {

using Then = Eagle3LinearArgs::Then;

constexpr int64_t kMostTokens = Eagle3Memory::kTokens;
constexpr size_t kMostGraphs = 128;

// Tables of a pass on their way to the card, one behind the other: where each lies depends on their lengths alone.
class InputTables {
 public:
  explicit InputTables(int32_t* device) : device_(device) {}
  // Where the table will be.
  int32_t* put(std::span<const int32_t> table) {
    int32_t* const at = device_ + all_.size();
    all_.insert(all_.end(), table.begin(), table.end());
    return at;
  }
  [[nodiscard]] std::span<const int32_t> all() const { return all_; }

 private:
  int32_t* device_;
  std::vector<int32_t> all_;
};

// Of rows that pass through the layers together; device memory.
struct RowTables {
  const int32_t* slots = nullptr;  // [rows], and so on
  const int32_t* first = nullptr;
  const int32_t* end = nullptr;
  const int32_t* pages_at = nullptr;
  const int32_t* page_ids = nullptr;
  const float* cosine = nullptr;
  const float* sine = nullptr;
};

class CardRunner final : public Eagle3Runner {
 public:
  CardRunner(const HeadWeights& head, const Eagle3Setup& setup);
  ~CardRunner() override;
  CardRunner(const CardRunner&) = delete;
  CardRunner& operator=(const CardRunner&) = delete;

  void read(std::span<const Rows> sequences) override;
  void draft(std::span<const Draft> sequences) override;
  void end(SequenceId sequence) override;
  [[nodiscard]] std::vector<float> residual(SequenceId sequence) override;

 private:
  struct State {
    int32_t kept = -1;               // its row of Eagle3Memory::kept
    std::vector<int32_t> pages;      // its own
    std::vector<int64_t> positions;  // of its rows
    bool ready = false;              // its last row was read
    [[nodiscard]] int64_t rows() const { return std::ssize(positions); }
  };
  // A row on its way into the cache.
  struct Row {
    const State* state;
    int64_t row;  // of its sequence
    int32_t token;
    const float* residuals;  // none: of the mask token, behind all that the sequence has
    bool last;               // that its sequence has
  };
  // The tables of rows, before they are on the card.
  struct HostTables {
    std::vector<int32_t> positions, slots, first, end;
    void add(const State& state, int64_t row, int64_t position, std::optional<int64_t> window);
    // Positions apart, which only rope needs.
    [[nodiscard]] RowTables put(InputTables& inputs) const {
      return {.slots = inputs.put(slots), .first = inputs.put(first), .end = inputs.put(end)};
    }
  };
  struct Size {  // of a draft; of a pass: its rows, and how many guesses it makes for how many sequences
    int tokens = 0, sequences = 0, rows = 0;
    friend auto operator<=>(const Size&, const Size&) = default;
  };
  struct Replay {
    bool seen = false;
    GraphExec graph;
  };

  // Tables of a draft, on the card.
  struct DraftTables {
    const int32_t* kept;       // [sequences] rows of Eagle3Memory::kept
    const int32_t* positions;  // [tokens - 1, sequences], as are the rows' tables
    RowTables rows;
  };

  // Of a pass that drafts, on the card.
  struct GuessTables {
    const int32_t* taps;   // [rows] rows of Eagle3Memory::taps
    const int32_t* kept;   // [sequences] rows of Eagle3Memory::kept
    const int32_t* masks;  // [guesses - sequences] rows of the pass
  };

  [[nodiscard]] bool make_room(State& state, int64_t rows);
  static void append(const Rows& of, State& state, std::vector<Row>& rows);
  void pass(std::span<const Row> rows, std::span<const State* const> drafting);
  void draft_in_turn(std::span<const Draft> sequences);
  void draft_together(std::span<const Draft* const> drafts);
  void draft_at_once(std::span<const Draft> sequences);
  [[nodiscard]] std::span<const int32_t> drafted(size_t count);
  template <class Enqueue>
  void run(const Size& size, const Enqueue& enqueue);
  void enqueue_draft(const Size& size, const DraftTables& tables);
  void enqueue_guesses(const Size& size, const GuessTables& tables);

  // Launches.
  void rope(const int32_t* positions, int rows);
  void features(int rows, const int32_t* which);
  void enter(int rows, const float* feature, Eagle3EnterArgs args);
  void layers(int rows, const RowTables& tables);
  void linear(const CardProduct& product, int tokens, Eagle3LinearArgs args);
  void norm(const float* x, const float* scale, int rows, Eagle3NormArgs args);

  const Eagle3Setup setup_;
  const int multiprocessors_;
  Stream stream_;
  CardHead weights_;
  DeviceBytes bytes_;
  Eagle3Memory memory_;
  Staging staging_;
  PinnedBytes drafted_;  // int32 [draft rows]
  LaunchCounts counts_;
  Launch on_;
  std::vector<int32_t> free_pages_, free_kept_;
  std::unordered_map<SequenceId, State> of_;
  std::map<Size, Replay> replays_;
};

int opened(int device) { return open_device(device).multiprocessors; }

int64_t staged_bytes(const HeadWeights& head, const Eagle3Setup& setup) {
  return 4 * (kMostTokens * head.dims.taps * head.dims.target_hidden + Eagle3Memory::inputs_capacity(setup)) +
         512 * kMostTokens;
}

CardRunner::CardRunner(const HeadWeights& head, const Eagle3Setup& setup)
    : setup_(setup),
      multiprocessors_(opened(setup.device)),
      stream_(make_stream()),
      weights_(head, stream_.get()),
      bytes_(allocate_device(carve(head, setup, multiprocessors_, nullptr).bytes, "a head's keys and values")),
      memory_(carve(head, setup, multiprocessors_, bytes_.get())),
      staging_(staged_bytes(head, setup), stream_.get()),
      drafted_(allocate_pinned(4 * Eagle3Memory::kDraftRows, "a head's drafts")),
      on_{.stream = stream_.get(), .counts = &counts_} {
  cuda_check(cudaMemsetAsync(bytes_.get(), 0, static_cast<size_t>(memory_.bytes), stream_.get()));
  for (auto page = static_cast<int32_t>(eagle3_pages(setup)); page-- > 0;) free_pages_.push_back(page);
  for (int32_t kept = setup.sequences; kept-- > 0;) free_kept_.push_back(kept);
  if (!weights_.mask_token) return;
  cuda_check(cudaMemcpyAsync(memory_.taps + kMostTokens * weights_.taps_width, head.mask_hidden.data(),
                             head.mask_hidden.size() * sizeof(float), cudaMemcpyHostToDevice, stream_.get()));
  cuda_check(cudaStreamSynchronize(stream_.get()));
}

CardRunner::~CardRunner() {
  const CurrentDevice keeps;
  cudaSetDevice(setup_.device);
  cudaStreamSynchronize(stream_.get());  // whose kernels read what goes now
  replays_.clear();
}

// Whether the sequence may have so many rows.
bool CardRunner::make_room(State& state, int64_t rows) {
  const int64_t more = (rows + kEagle3PageRows - 1) / kEagle3PageRows - std::ssize(state.pages);
  if (more > std::ssize(free_pages_) || (state.kept < 0 && free_kept_.empty())) return false;
  for (int64_t i = 0; i < more; ++i) {
    state.pages.push_back(free_pages_.back());
    free_pages_.pop_back();
  }
  if (state.kept < 0) {
    state.kept = free_kept_.back();
    free_kept_.pop_back();
  }
  return true;
}

void CardRunner::end(SequenceId sequence) {
  const auto found = of_.find(sequence);
  if (found == of_.end()) return;
  const State& state = found->second;
  free_pages_.insert(free_pages_.end(), state.pages.begin(), state.pages.end());
  if (state.kept >= 0) free_kept_.push_back(state.kept);
  of_.erase(found);
}

std::vector<float> CardRunner::residual(SequenceId sequence) {
  const CurrentDevice keeps;
  cuda_check(cudaSetDevice(setup_.device));
  const State& state = of_.at(sequence);
  check(state.ready, "a row to show");
  std::vector<float> row(static_cast<size_t>(weights_.dims.hidden));
  cuda_check(cudaMemcpyAsync(row.data(), memory_.kept + state.kept * weights_.dims.hidden, row.size() * sizeof(float),
                             cudaMemcpyDeviceToHost, stream_.get()));
  cuda_check(cudaStreamSynchronize(stream_.get()));
  return row;
}

// Row `row` of the sequence, which may be one of a draft.
void CardRunner::HostTables::add(const State& state, int64_t row, int64_t position, std::optional<int64_t> window) {
  const int64_t sees = window ? first_row_seen(state.positions, position, *window) : 0;
  positions.push_back(static_cast<int32_t>(position));
  const int32_t page = state.pages[static_cast<size_t>(row / kEagle3PageRows)];
  slots.push_back(static_cast<int32_t>(page * kEagle3PageRows + row % kEagle3PageRows));
  first.push_back(static_cast<int32_t>(sees));
  end.push_back(static_cast<int32_t>(row + 1));
}

void CardRunner::read(std::span<const Rows> sequences) {
  const CurrentDevice keeps;
  cuda_check(cudaSetDevice(setup_.device));
  const auto width = static_cast<size_t>(weights_.taps_width);
  std::vector<Row> rows;
  for (const Rows& of : sequences) {
    State& state = of_[of.sequence];
    check(!of.tokens.empty() && of.residuals.size() == of.tokens.size() * width, "residuals for each token");
    check(state.positions.empty() || state.positions.back() < of.position, "rows come in order");
    state.ready = make_room(state, state.rows() + std::ssize(of.tokens));
    if (state.ready) append(of, state, rows);
  }
  for (size_t from = 0; from < rows.size(); from += kMostTokens)
    pass(std::span(rows).subspan(from, std::min<size_t>(kMostTokens, rows.size() - from)), {});
}

void CardRunner::append(const Rows& of, State& state, std::vector<Row>& rows) {
  const size_t width = of.residuals.size() / of.tokens.size();
  for (size_t r = 0; r < of.tokens.size(); ++r) {
    rows.push_back({.state = &state,
                    .row = state.rows(),
                    .token = of.tokens[r],
                    .residuals = of.residuals.data() + r * width,
                    .last = r + 1 == of.tokens.size()});
    state.positions.push_back(of.position + static_cast<int64_t>(r));
  }
}

// Of up to kMostTokens rows, a sequence's behind each other. `drafting`: sequences of which guesses follow, the first
// of each, then those of all rows of the mask token; as many together.
void CardRunner::pass(std::span<const Row> rows, std::span<const State* const> drafting) {
  HostTables host;
  std::vector<int32_t> tokens, kept, pages_at, page_ids, taps, masks, from_kept;
  const State* previous = nullptr;
  for (const State* state : drafting) from_kept.push_back(state->kept);
  for (const Row& row : rows) {
    const State& state = *row.state;
    const auto at = static_cast<int32_t>(tokens.size());
    const bool of_text = row.residuals != nullptr;
    host.add(
        state, row.row,
        of_text ? state.positions[static_cast<size_t>(row.row)] : state.positions.back() + 1 + row.row - state.rows(),
        weights_.sliding_window);
    taps.push_back(of_text ? at : static_cast<int32_t>(kMostTokens));
    if (!of_text) masks.push_back(at);
    tokens.push_back(row.token);
    kept.push_back(row.last ? state.kept : -1);
    if (&state == previous) {
      pages_at.push_back(pages_at.back());
    } else {
      pages_at.push_back(static_cast<int32_t>(page_ids.size()));
      page_ids.insert(page_ids.end(), state.pages.begin(), state.pages.end());
    }
    previous = &state;
  }
  InputTables inputs(memory_.inputs);
  RowTables tables = host.put(inputs);
  const int32_t* const positions = inputs.put(host.positions);
  int32_t* const ids = inputs.put(tokens);
  const int32_t* const to = inputs.put(kept);
  GuessTables guesses{.taps = nullptr, .kept = inputs.put(from_kept), .masks = inputs.put(masks)};
  if (!drafting.empty()) guesses.taps = inputs.put(taps);
  tables.pages_at = inputs.put(pages_at);
  tables.page_ids = inputs.put(page_ids);
  staging_.begin_step();
  staging_.copy(memory_.inputs, std::as_bytes(inputs.all()));
  const auto width = static_cast<size_t>(weights_.taps_width);
  for (size_t from = 0, end = 0; from < rows.size(); from = end) {  // a sequence's lie behind each other
    end = from + 1;
    if (rows[from].residuals == nullptr) continue;
    while (end < rows.size() && rows[end].state == rows[from].state && rows[end].residuals != nullptr) ++end;
    staging_.copy(memory_.taps + from * width, std::as_bytes(std::span(rows[from].residuals, (end - from) * width)));
  }

  const auto count = static_cast<int>(rows.size());
  const Size size{.tokens = static_cast<int>(drafting.size() + masks.size()),
                  .sequences = static_cast<int>(drafting.size()),
                  .rows = count};
  tables.cosine = memory_.cosine, tables.sine = memory_.sine;
  run(size, [&] {
    if (count > 0) {
      rope(positions, count);
      features(count, guesses.taps);
      enter(count, memory_.feature, {.ids = ids});
      layers(count, tables);
      norm(memory_.residual, nullptr, count, {.to = to, .plain = memory_.kept});
    }
    if (size.tokens > 0) enqueue_guesses(size, guesses);
  });
}

void CardRunner::draft(std::span<const Draft> sequences) {
  const CurrentDevice keeps;
  cuda_check(cudaSetDevice(setup_.device));
  if (weights_.mask_token) return draft_at_once(sequences);
  read(unread_of(sequences));
  draft_in_turn(sequences);
}

// What is unread and a row of the mask token for each guess but the first, of as many sequences as a pass holds.
void CardRunner::draft_at_once(std::span<const Draft> sequences) {
  std::vector<Row> rows;
  std::vector<const State*> drafting;
  std::vector<std::vector<int32_t>*> into;  // of each guess behind the first ones
  std::vector<std::vector<int32_t>*> first;
  const auto flush = [&] {
    if (drafting.empty()) return;
    pass(rows, drafting);
    first.insert(first.end(), into.begin(), into.end());
    const std::span<const int32_t> tokens = drafted(first.size());
    for (size_t i = 0; i < first.size(); ++i) first[i]->push_back(tokens[i]);
    rows.clear(), drafting.clear(), into.clear(), first.clear();
  };
  for (const Draft& draft : sequences) {
    draft.tokens->clear();
    check(draft.most > 0 && (draft.unread != nullptr || of_.contains(draft.sequence)), "rows to draft from");
    State& state = of_[draft.sequence];
    const int64_t masks = std::min(draft.most, kEagle3MostDraft) - 1;
    int64_t unread = draft.unread == nullptr ? 0 : std::ssize(draft.unread->tokens);
    if (unread > 0 && (unread + masks > kMostTokens || !make_room(state, state.rows() + unread + masks))) {
      read({draft.unread, 1});
      unread = 0;
    }
    if (unread == 0 && (!state.ready || !make_room(state, state.rows() + masks))) continue;
    const int64_t guesses = std::ssize(first) + std::ssize(into);
    if (std::max(std::ssize(rows) + unread + masks, guesses + 1 + masks) > kMostTokens) flush();
    if (unread > 0) append(*draft.unread, state, rows);
    state.ready = true;
    for (int64_t i = 0; i < masks; ++i) {
      rows.push_back({.state = &state,
                      .row = state.rows() + i,
                      .token = *weights_.mask_token,
                      .residuals = nullptr,
                      .last = false});
      into.push_back(draft.tokens);
    }
    drafting.push_back(&state);
    first.push_back(draft.tokens);
  }
  flush();
}

// A token of each at a time.
void CardRunner::draft_in_turn(std::span<const Draft> sequences) {
  int64_t longest = 1;
  for (const Draft& draft : sequences) longest = std::max<int64_t>(longest, std::min(draft.most, kEagle3MostDraft));
  std::vector<const Draft*> together;
  const auto flush = [&] {
    if (!together.empty()) draft_together(together);
    together.clear();
  };
  for (const Draft& draft : sequences) {
    draft.tokens->clear();
    const auto found = of_.find(draft.sequence);
    check(found != of_.end() && draft.most > 0, "rows to draft from");
    State& state = found->second;
    if (!state.ready || !make_room(state, state.rows() + longest - 1)) continue;  // the last token makes no row
    together.push_back(&draft);
    if (std::ssize(together) == kMostTokens) flush();
  }
  flush();
}

void CardRunner::draft_together(std::span<const Draft* const> drafts) {
  Size size{.tokens = 1, .sequences = static_cast<int>(drafts.size())};
  for (const Draft* draft : drafts) size.tokens = std::max(size.tokens, std::min(draft->most, kEagle3MostDraft));
  HostTables host;
  std::vector<int32_t> which, pages_at, page_ids;
  for (int step = 0; step + 1 < size.tokens; ++step) {
    for (const Draft* draft : drafts) {
      const State& state = of_.at(draft->sequence);
      host.add(state, state.rows() + step, state.positions.back() + 1 + step, weights_.sliding_window);
    }
  }
  for (const Draft* draft : drafts) {
    const State& state = of_.at(draft->sequence);
    which.push_back(state.kept);
    pages_at.push_back(static_cast<int32_t>(page_ids.size()));
    page_ids.insert(page_ids.end(), state.pages.begin(), state.pages.end());
  }
  InputTables inputs(memory_.inputs);
  RowTables tables = host.put(inputs);
  const int32_t* const positions = inputs.put(host.positions);
  const int32_t* const from = inputs.put(which);
  tables.pages_at = inputs.put(pages_at);
  tables.page_ids = inputs.put(page_ids);
  staging_.begin_step();
  staging_.copy(memory_.inputs, std::as_bytes(inputs.all()));

  run(size, [&] { enqueue_draft(size, {.kept = from, .positions = positions, .rows = tables}); });
  const std::span<const int32_t> tokens = drafted(static_cast<size_t>(size.tokens) * drafts.size());
  for (size_t i = 0; i < drafts.size(); ++i) {
    for (int step = 0; step < std::min(drafts[i]->most, kEagle3MostDraft); ++step)
      drafts[i]->tokens->push_back(tokens[static_cast<size_t>(step) * drafts.size() + i]);
  }
}

std::span<const int32_t> CardRunner::drafted(size_t count) {
  auto* const tokens = reinterpret_cast<int32_t*>(drafted_.get());
  cuda_check(cudaMemcpyAsync(tokens, memory_.drafts, 4 * count, cudaMemcpyDeviceToHost, stream_.get()));
  cuda_check(cudaStreamSynchronize(stream_.get()));
  return {tokens, count};
}

// The first time as it is, since kernels are loaded then; the second is recorded, and replayed from then on.
template <class Enqueue>
void CardRunner::run(const Size& size, const Enqueue& enqueue) {
  const bool room = replays_.contains(size) || replays_.size() < kMostGraphs;
  if (!setup_.graphs || !room) return enqueue();
  Replay& replay = replays_[size];
  if (!std::exchange(replay.seen, true)) return enqueue();
  if (replay.graph == nullptr) {
    cuda_check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
    enqueue();
    replay.graph = captured(stream_.get());
  }
  cuda_check(cudaGraphLaunch(replay.graph.get(), stream_.get()));
}

void CardRunner::enqueue_draft(const Size& size, const DraftTables& tables) {
  const int count = size.sequences;
  if (size.tokens > 1) rope(tables.positions, count * (size.tokens - 1));
  norm(memory_.kept, weights_.norm, count,
       {.which = tables.kept,
        .rounded = memory_.normed,
        .normed = weights_.norm_output ? memory_.feature : nullptr,
        .plain = weights_.norm_output ? nullptr : memory_.residual});
  for (int step = 0;; ++step) {
    linear(weights_.lm_head, count, {.then = Then::kBest, .x = memory_.normed, .best = memory_.best});
    Eagle3EnterArgs token{.best = memory_.best,
                          .target_ids = weights_.target_ids,
                          .ids = memory_.drafts + step * count,
                          .tokens = count,
                          .best_tiles = eagle3_row_tiles(weights_.lm_head.rows)};
    if (step + 1 == size.tokens) return any_eagle3_enter(token, on_);
    enter(count, weights_.norm_output ? memory_.feature : memory_.residual, token);
    RowTables rows = tables.rows;
    const int64_t at = int64_t{step} * count, half = weights_.dims.head_dim / 2;
    rows.slots += at, rows.first += at, rows.end += at;
    rows.cosine = memory_.cosine + at * half, rows.sine = memory_.sine + at * half;
    layers(count, rows);
    norm(memory_.residual, weights_.norm, count,
         {.rounded = memory_.normed, .normed = weights_.norm_output ? memory_.feature : nullptr});
  }
}

// Of rows that have passed through the layers, in `residual` and `kept`.
void CardRunner::enqueue_guesses(const Size& size, const GuessTables& tables) {
  const int masks = size.tokens - size.sequences;
  norm(memory_.kept, weights_.norm, size.sequences, {.which = tables.kept, .rounded = memory_.normed});
  if (masks > 0)
    norm(memory_.residual, weights_.norm, masks,
         {.which = tables.masks, .rounded = memory_.normed + size.sequences * weights_.dims.hidden});
  linear(weights_.lm_head, size.tokens, {.then = Then::kBest, .x = memory_.normed, .best = memory_.best});
  any_eagle3_enter({.best = memory_.best,
                    .target_ids = weights_.target_ids,
                    .ids = memory_.drafts,
                    .tokens = size.tokens,
                    .best_tiles = eagle3_row_tiles(weights_.lm_head.rows)},
                   on_);
}

void CardRunner::rope(const int32_t* positions, int rows) {
  any_rope_table({.positions = positions,
                  .inv_freq = weights_.rope_inv_freq,
                  .cosine = memory_.cosine,
                  .sine = memory_.sine,
                  .tokens = rows,
                  .half = static_cast<int>(weights_.dims.head_dim / 2),
                  .concentration = weights_.rope_concentration},
                 on_);
}

// From memory_.taps, or `which` of its rows, to memory_.feature.
void CardRunner::features(int rows, const int32_t* which) {
  Eagle3NormArgs args{.x = memory_.taps,
                      .which = which,
                      .scale = weights_.tap_norms,
                      .rounded = memory_.rounded_taps,
                      .rows = rows,
                      .segments = weights_.tap_segments,
                      .width = static_cast<int>(weights_.taps_width / weights_.tap_segments),
                      .eps = weights_.eps};
  if (!weights_.fc) {
    args.scale = weights_.target_norm, args.eps = weights_.target_eps;
    args.rounded = nullptr, args.normed = memory_.feature;
  }
  any_eagle3_norm(args, on_);
  if (weights_.fc) linear(*weights_.fc, rows, {.x = memory_.rounded_taps, .out = memory_.feature});
}

// To memory_.x and memory_.residual.
void CardRunner::enter(int rows, const float* feature, Eagle3EnterArgs args) {
  const CardHeadLayer& layer = weights_.layers.front();
  args.embedding = weights_.embedding;
  args.input_norm = layer.input_norm, args.hidden_norm = layer.hidden_norm;
  args.feature = feature;
  args.x = memory_.x, args.residual = memory_.residual;
  args.tokens = rows, args.hidden = static_cast<int>(weights_.dims.hidden);
  args.eps = weights_.eps;
  args.norm_before_residual = weights_.norm_before_residual;
  any_eagle3_enter(args, on_);
}

// From memory_.x and memory_.residual to memory_.residual.
void CardRunner::layers(int rows, const RowTables& tables) {
  const HeadDims& d = weights_.dims;
  const auto heads = static_cast<int>(d.heads), kv_heads = static_cast<int>(d.kv_heads),
             head_dim = static_cast<int>(d.head_dim);
  for (size_t n = 0; n < weights_.layers.size(); ++n) {
    const CardHeadLayer& layer = weights_.layers[n];
    if (n > 0) norm(memory_.residual, layer.input_norm, rows, {.rounded = memory_.x});
    linear(layer.qkv, rows,
           {.then = Then::kRope,
            .x = memory_.x,
            .out = memory_.q,
            .cosine = tables.cosine,
            .sine = tables.sine,
            .slots = tables.slots,
            .pages = memory_.pages[n],
            .heads = heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim});
    Eagle3AttendArgs attend{.q = memory_.q,
                            .pages = memory_.pages[n],
                            .first = tables.first,
                            .end = tables.end,
                            .pages_at = tables.pages_at,
                            .page_ids = tables.page_ids,
                            .out = memory_.attended,
                            .parts = memory_.parts,
                            .finished = memory_.finished,
                            .tokens = rows,
                            .heads = heads,
                            .kv_heads = kv_heads,
                            .head_dim = head_dim};
    attend.splits = attend_splits(attend, multiprocessors_);
    any_eagle3_attend(attend, on_);
    linear(layer.o, rows, {.x = memory_.attended, .out = memory_.residual, .residual = memory_.residual});
    norm(memory_.residual, layer.post_attention_norm, rows, {.rounded = memory_.normed});
    linear(layer.gate_up, rows, {.then = Then::kGate, .x = memory_.normed, .gated = memory_.gated});
    linear(layer.down, rows, {.x = memory_.gated, .out = memory_.residual, .residual = memory_.residual});
  }
}

void CardRunner::linear(const CardProduct& product, int tokens, Eagle3LinearArgs args) {
  args.weight = product.weight, args.bias = product.bias;
  args.tokens = tokens, args.rows = product.rows, args.cols = product.cols;
  any_eagle3_linear(args, plan(args, multiprocessors_), on_);
}

// Of whole rows.
void CardRunner::norm(const float* x, const float* scale, int rows, Eagle3NormArgs args) {
  args.x = x, args.scale = scale;
  args.rows = rows, args.width = static_cast<int>(weights_.dims.hidden);
  args.eps = weights_.eps;
  any_eagle3_norm(args, on_);
}

}  // namespace

std::unique_ptr<Eagle3Runner> make_eagle3_runner(const HeadWeights& head, const Eagle3Setup& setup) {
  require_eagle3_shapes(head);
  const CurrentDevice keeps;
  return std::make_unique<CardRunner>(head, setup);
}

}  // namespace nibble::backend::cuda
