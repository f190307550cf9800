#include "app/bench_batch.h"

#include "base/error.h"
#include "base/random.h"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace nibble::app {
namespace {

using backend::LayerKind;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int64_t pages_for(int64_t tokens) { return (tokens + backend::kPageTokens - 1) / backend::kPageTokens; }

// Tokens that a sequence may get behind its depth, and be taken back from.
int64_t span_of(const BenchShape& shape, int sequence) {
  return sequence == 0 ? std::max(shape.prompt, shape.generate) : shape.generate;
}

// A ring must hold the window before the first position that may be asked for again, and all behind it.
int64_t pages_of(const BenchShape& shape, int sequence, LayerKind kind, int64_t window) {
  const int64_t all = pages_for(shape.depth + span_of(shape, sequence));
  if (kind == LayerKind::kFull) return all;
  return std::min(all, pages_for(window + std::max<int64_t>(shape.chunk_tokens, span_of(shape, sequence))) + 1);
}

}  // namespace

model::StepLimits step_limits(const BenchShape& shape, const backend::Dims& dims) {
  model::StepLimits limits{
      .max_tokens = std::max(shape.chunk_tokens, shape.sequences), .max_rows = shape.sequences, .kv_pages = {}};
  for (const LayerKind kind : {LayerKind::kSliding, LayerKind::kFull}) {
    int64_t pages = 0;
    for (int s = 0; s < shape.sequences; ++s) pages += pages_of(shape, s, kind, dims.sliding_window);
    constexpr int64_t kMostPages = int64_t{1} << 24;  // slots are 32-bit
    if (pages > kMostPages) {
      throw Error(Code::kInvalidRequest,
                  "-b, -d, -p and -n: want at most {} tokens in all sequences together, found {}",
                  kMostPages * backend::kPageTokens, pages * backend::kPageTokens);
    }
    limits.kv_pages[static_cast<size_t>(kind)] = static_cast<int32_t>(pages);
  }
  return limits;
}

BenchBatch::BenchBatch(backend::Backend& be, const model::GptOss& model, const BenchShape& shape)
    : be_(be), model_(model), shape_(shape), computed_(static_cast<size_t>(shape.sequences)) {
  for (const LayerKind kind : {LayerKind::kSliding, LayerKind::kFull}) {
    int32_t first = 0;
    for (int s = 0; s < shape.sequences; ++s) {
      const auto count = static_cast<int32_t>(pages_of(shape, s, kind, model.config.dims.sliding_window));
      pages_[static_cast<size_t>(kind)].push_back({first, count});
      first += count;
    }
  }
}

int32_t BenchBatch::random_id(int sequence, int64_t position) const {
  const uint32_t word = philox(static_cast<uint64_t>(sequence), static_cast<uint64_t>(position))[0];
  return static_cast<int32_t>(word % static_cast<uint64_t>(model_.config.dims.vocab));
}

int32_t BenchBatch::page_of(int sequence, LayerKind kind, int64_t position) const {
  const Pages& pages = pages_[static_cast<size_t>(kind)][static_cast<size_t>(sequence)];
  return pages.first + static_cast<int32_t>(position / backend::kPageTokens % pages.count);
}

void BenchBatch::add_kv(model::Step& step, std::span<const Part> parts, LayerKind kind) const {
  model::Step::Kv& kv = step.kv[static_cast<size_t>(kind)];
  for (const backend::Row& row : step.rows)
    kv.pages_per_row = std::max(kv.pages_per_row, static_cast<int32_t>(pages_for(row.context)));
  kv.page_ids.assign(parts.size() * static_cast<size_t>(kv.pages_per_row), -1);
  for (size_t r = 0; r < parts.size(); ++r) {
    const Part& part = parts[r];
    const int64_t count = static_cast<int64_t>(part.ids.size()), window = model_.config.dims.sliding_window;
    const int64_t seen = kind == LayerKind::kSliding ? std::max<int64_t>(0, part.first - window + 1) : 0;
    for (int64_t p = seen / backend::kPageTokens; p < pages_for(part.first + count); ++p) {
      kv.page_ids[r * static_cast<size_t>(kv.pages_per_row) + static_cast<size_t>(p)] =
          page_of(part.sequence, kind, p * backend::kPageTokens);
    }
    for (int64_t position = part.first; position < part.first + count; ++position) {
      kv.slots.push_back(page_of(part.sequence, kind, position) * backend::kPageTokens +
                         static_cast<int32_t>(position % backend::kPageTokens));
    }
  }
}

std::optional<backend::Ticket> BenchBatch::run(std::span<const Part> parts, bool sample) const {
  model::Step step;
  for (const Part& part : parts) {
    const auto count = static_cast<int32_t>(part.ids.size());
    const auto context = static_cast<int32_t>(part.first) + count;
    step.rows.push_back(
        {.first_token = static_cast<int32_t>(step.token_ids.size()), .tokens = count, .context = context});
    step.token_ids.insert(step.token_ids.end(), part.ids.begin(), part.ids.end());
    for (int32_t i = 0; i < count; ++i) step.positions.push_back(static_cast<int32_t>(part.first) + i);
    if (!sample) continue;
    step.logit_tokens.push_back(static_cast<int32_t>(step.token_ids.size()) - 1);
    step.sample_rows.push_back({.params = &greedy_, .position = context});
  }
  for (const LayerKind kind : {LayerKind::kSliding, LayerKind::kFull}) add_kv(step, parts, kind);
  if (times_ == nullptr) return model::forward(be_, model_, step);
  times_->begin();
  return model::forward(be_, model_, step, [&](backend::Stage stage, int) { times_->after(stage); });
}

void BenchBatch::check_drawn(backend::Ticket ticket) const {
  for (const backend::Drawn& row : be_.wait(ticket))
    if (row.error) throw *row.error;
}

// The last step samples, so that all of it is over when this returns.
bool BenchBatch::prefill(int sequence, int64_t until, const KeepGoing& keep_going) {
  int64_t& computed = computed_[static_cast<size_t>(sequence)];
  std::vector<int32_t> ids;
  while (computed < until) {
    if (!keep_going()) return false;
    ids.resize(static_cast<size_t>(std::min<int64_t>(shape_.chunk_tokens, until - computed)));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = random_id(sequence, computed + static_cast<int64_t>(i));
    const Part part{sequence, computed, ids};
    computed += static_cast<int64_t>(ids.size());
    if (const auto ticket = run({&part, 1}, computed == until)) check_drawn(*ticket);
  }
  return true;
}

bool BenchBatch::fill(int count, int64_t depth, const KeepGoing& keep_going) {
  check(count <= shape_.sequences && depth >= depth_ && depth <= shape_.depth, "depths rise to the shape's");
  depth_ = depth;
  for (int s = 0; s < count; ++s) {
    computed_[static_cast<size_t>(s)] = std::min(computed_[static_cast<size_t>(s)], depth);
    if (!prefill(s, depth, keep_going)) return false;
  }
  return true;
}

std::optional<double> BenchBatch::time_prompt(int64_t tokens, const KeepGoing& keep_going) {
  computed_[0] = std::min(computed_[0], depth_);
  const auto start = Clock::now();
  if (!prefill(0, depth_ + tokens, keep_going)) return std::nullopt;
  return seconds_since(start);
}

std::optional<double> BenchBatch::time_generate(int count, int64_t tokens, const KeepGoing& keep_going) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int s = 0; s < count; ++s) {
    ids[static_cast<size_t>(s)] = random_id(s, depth_);
    // What is generated takes the place of what a prompt put there.
    computed_[static_cast<size_t>(s)] = std::min(computed_[static_cast<size_t>(s)], depth_);
  }
  std::vector<int32_t> drawn_before(ids.size());  // names of what the step before draws
  for (int s = 0; s < count; ++s) drawn_before[static_cast<size_t>(s)] = -1 - s;
  std::vector<Part> parts(static_cast<size_t>(count));
  std::optional<backend::Ticket> before;  // a step is enqueued before the tokens of the one before are read
  const auto start = Clock::now();
  for (int64_t i = 0; i < tokens; ++i) {
    if (!keep_going()) {
      if (before) check_drawn(*before);
      return std::nullopt;
    }
    for (int s = 0; s < count; ++s)
      parts[static_cast<size_t>(s)] = {s, depth_ + i, std::span(ids).subspan(static_cast<size_t>(s), 1)};
    const std::optional<backend::Ticket> own = run(parts, true);
    if (before) check_drawn(*before);
    before = own;
    ids = drawn_before;
  }
  if (before) check_drawn(*before);
  return seconds_since(start);
}

void BenchBatch::each_prompt_step(int64_t tokens, const Visit& visit) const {
  for (int64_t done = 0; done < tokens;) {
    const int64_t count = std::min<int64_t>(shape_.chunk_tokens, tokens - done);
    done += count;
    const backend::Row row{
        .first_token = 0, .tokens = static_cast<int32_t>(count), .context = static_cast<int32_t>(depth_ + done)};
    visit({.rows = {&row, 1}, .logit_rows = done == tokens ? 1 : 0});
  }
}

void BenchBatch::each_generate_step(int count, int64_t tokens, const Visit& visit) const {
  for (int64_t i = 0; i < tokens; ++i) {
    const backend::Row row{.first_token = 0, .tokens = 1, .context = static_cast<int32_t>(depth_ + i + 1)};
    const std::vector<backend::Row> rows(static_cast<size_t>(count), row);
    visit({.rows = rows, .logit_rows = count});
  }
}

}  // namespace nibble::app
