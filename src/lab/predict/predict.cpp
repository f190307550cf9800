// nibble predict: decode and prompt speeds of a card that need not be in this machine.

#include "app/setup/commands.h"
#include "app/setup/loaded_model.h"
#include "app/setup/memory_budget.h"
#include "app/setup/named_model.h"
#include "app/options/option.h"
#include "lab/predict/predictor.h"
#include "app/setup/rank_memory.h"
#include "app/setup/terminal.h"
#include "backend/cost.h"
#include "backend/kv_dtype.h"
#include "base/error.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace nibble::app {
namespace {

struct Weights {
  std::string name;
  backend::DenseFormats dense;
};

std::vector<Weights> weights_of(const ModelOptions& options) {
  using Format = backend::WeightFormat;
  const backend::DenseFormats& asked = options.run.dense;
  if (asked.qkv || asked.o || asked.lm_head) return {{"experts MXFP4, the rest as asked", asked}};
  return {{"exact (experts MXFP4, the rest bf16)", {}},
          {"dense layers MXFP8", {Format::kMxfp8, Format::kMxfp8, Format::kMxfp8}},
          {"all MXFP4", {Format::kMxfp4, Format::kMxfp4, Format::kMxfp4}}};
}

// One sequence at every depth. Several sequences, and prompts, only at the smallest depth, as in bench.
std::vector<PredictShape> shapes_of(const PredictOptions& options) {
  std::vector<PredictShape> shapes;
  const int64_t least = options.depths.front();
  for (const int64_t batch : options.batches)
    for (const int64_t depth : options.depths)
      if (batch > 0 && (batch == 1 || depth == least))
        shapes.push_back({.batch = static_cast<int>(batch), .depth = depth});
  for (const int64_t prompt : options.prompts)
    if (prompt > 0) shapes.push_back({.prompt = prompt});
  if (shapes.empty()) throw Error(Code::kInvalidRequest, "want -b or -p above 0, found nothing to predict");
  return shapes;
}

}  // namespace

int execute(const PredictOptions& asked) {
  PredictOptions options = asked;
  Terminal terminal(options.output);
  backend::cuda::KnownCard card = backend::cuda::card_named(options.card);
  if (options.neutral) card = backend::cuda::as_sm80(card);
  const int ranks = options.model.run.ranks.count;
  if (ranks == 1 && (!options.link.empty() || options.link_us >= 0))
    throw Error(Code::kInvalidRequest, "want --tensor-parallel-size of at least 2 with --link and --link-us, found 1");
  backend::cuda::KnownLink link =
      options.link.empty() ? backend::cuda::usual_link(options.card) : backend::cuda::link_named(options.link);
  if (options.link_us >= 0) {
    (link.push_bytes_per_s > 0 ? link.push_us : link.long_us) = options.link_us;
    link.from += fmt::format("; {} us asked for", options.link_us);
  }
  options.model.run.backend = BackendKind::kCuda;
  check_backends(options.model.run, {BackendKind::kCuda});
  options.model.run = backend::with_defaults(options.model.run);
  options.model = with_files(options.model, terminal);
  const auto [config, notes] = open_config(options.model);
  for (const std::string& note : notes) terminal.note(note);
  backend::validate(options.model.run.ranks, config.dims);
  Prediction prediction{.model = options.model.name,
                        .card = card,
                        .kernels = {},
                        .ranks = ranks,
                        .link = link,
                        .kv_cache = std::string(backend::type_of(options.model.run.kv_type()).word),
                        .step_tokens = options.model.run.max_num_batched_tokens,
                        .tables = {}};
  for (const backend::cuda::Arch& arch : backend::cuda::Card(card.facts).arches)
    prediction.kernels += (prediction.kernels.empty() ? "" : ", ") + std::string(arch.name);
  for (const Weights& weights : weights_of(options.model)) {
    const Predictor predictor{options.model, config, weights.dense, card, link};
    const backend::CostModel cost =
        of_a_card({config.dims, backend::StoredFormats::of({}, weights.dense)}, options.model.run.ranks);
    PredictedTable& table = prediction.tables.emplace_back(weights.name, cost.weight_bytes());
    for (const PredictShape& shape : shapes_of(options)) table.rows.push_back(predictor.row(shape));
    if (ranks > 1) {
      backend::CostModel whole{config.dims, backend::StoredFormats::of({}, weights.dense)};
      whole.formats.kv_row_bytes = kv_row_bytes(options.model, config.dims);
      table.ranks = ranks_json(whole, config, options.model.run.ranks, options.depths.front(),
                               memory_of_a_card(card.facts.memory_bytes, options.model.run));
    }
  }
  if (options.output.json) {
    terminal.print_json(predict_json(prediction));
  } else {
    terminal.print(predict_markdown(prediction));
  }
  return kExitOk;
}

}  // namespace nibble::app
