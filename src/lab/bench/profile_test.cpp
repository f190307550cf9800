#include "lab/bench/profile.h"

#include <gtest/gtest.h>

namespace nibble::app {
namespace {

using backend::Stage;

const backend::DevicePeaks kCardPeaks{
    .device = "a card", .read_bytes_per_s = 1e12, .matrix = {{.type = "bf16", .exact16 = true, .flops_per_s = 1e14}}};

model::ModelConfig two_layers() {
  model::ModelConfig config;
  config.dims.layers = 2;
  config.layer_kinds = {backend::LayerKind::kSliding, backend::LayerKind::kFull};
  return config;
}

// A step whose kernels take 40 µs, 10 of them under another's end, and rest 20 µs in between; twice.
DeviceProfile profile() {
  DeviceProfile made{.times = {.steps = 2,
                               .kernels = {{Stage::kAttend, "attend", 4, 40, 40},
                                           {Stage::kMoe, "experts", 4, 40, 20},
                                           {Stage::kLogits, "draw", 2, 4, 4}},
                               .between_kernels_us = 12,
                               .between_steps_us = 24},
                     .costs = {}};
  backend::cuda::Program program;
  const auto add = [&](Stage stage, std::optional<backend::LayerKind> kind, std::string kernel, backend::Cost cost) {
    backend::cuda::Node& node = program.nodes.emplace_back();
    node.stage = stage;
    node.kind = kind;
    node.kernel = std::move(kernel);
    node.cost = cost;
  };
  add(Stage::kAttend, backend::LayerKind::kSliding, "attend", {1e6, 0});
  add(Stage::kAttend, backend::LayerKind::kFull, "attend", {3e6, 0});
  add(Stage::kMoe, {}, "experts", {4e6, 1e8});
  for (int step = 0; step < 2; ++step) add_step(made.costs, program, two_layers());
  return made;
}

TEST(bench_profile, costs_are_those_of_all_layers_and_steps) {
  const KernelCosts costs = profile().costs;
  EXPECT_DOUBLE_EQ(costs.at({Stage::kAttend, "attend"}).bytes, 8e6);
  EXPECT_DOUBLE_EQ(costs.at({Stage::kMoe, "experts"}).bytes, 16e6);
  EXPECT_DOUBLE_EQ(costs.at({Stage::kMoe, "experts"}).flops, 4e8);
  EXPECT_FALSE(costs.contains({Stage::kLogits, "draw"}));
}

TEST(bench_profile, kernels_and_pauses_add_up_to_the_step) {
  const auto json = profile_json(profile(), kCardPeaks);
  double us = json["between_kernels_us_per_step"].get<double>() + json["between_steps_us_per_step"].get<double>(),
         of = 0;
  for (const auto& kernel : json["kernels"]) {
    us += kernel["us_per_step"].get<double>();
    of += kernel["of_time"].get<double>();
  }
  EXPECT_DOUBLE_EQ(us, 50);
  EXPECT_DOUBLE_EQ(json["us_per_step"].get<double>(), 50);
  EXPECT_DOUBLE_EQ(of, 0.64);
  const auto& experts = json["kernels"][1];
  EXPECT_DOUBLE_EQ(experts["us_per_launch"].get<double>(), 10);
  EXPECT_DOUBLE_EQ(experts["us_per_step"].get<double>(), 10);
  EXPECT_DOUBLE_EQ(experts["of_read"].get<double>(), 0.8);
  EXPECT_DOUBLE_EQ(experts["of_matrix"].get<double>(), 0.2);
}

TEST(bench_profile, the_table_has_a_line_for_each_kernel_and_for_what_lies_between) {
  const std::string table = profile_table({.generate = 2, .seconds = {1}}, profile(), kCardPeaks);
  for (const char* line : {"tg2, batch 1: per step, over 2 steps and all layers", "| attend   | attend ",
                           "|          | between kernels ", "|     12.0 |", "|   800.0 |   80.0% |"})
    EXPECT_NE(table.find(line), std::string::npos) << line << table;
}

}  // namespace
}  // namespace nibble::app
