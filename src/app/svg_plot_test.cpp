#include "app/svg_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

namespace nibble::app {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(SvgPlot, marks_begin_at_zero_and_reach_the_highest) {
  EXPECT_THAT(axis_marks(0, 0), ElementsAre(0, 1));
  EXPECT_THAT(axis_marks(0, 5), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(axis_marks(0, 7), ElementsAre(0, 2, 4, 6, 8));
  EXPECT_THAT(axis_marks(-3, 12), ElementsAre(-5, 0, 5, 10, 15));
  EXPECT_THAT(axis_marks(2, 10), ElementsAre(0, 2, 4, 6, 8, 10)) << "not from 2";
  for (const double high : {1e-9, 0.3, 1.0, 9.99, 1234.5, 8e12}) {
    const std::vector<double> marks = axis_marks(0, high);
    EXPECT_EQ(marks.front(), 0);
    EXPECT_GE(marks.back(), high * (1 - 1e-9));
    EXPECT_LE(marks.size(), 8U);
    EXPECT_GE(marks.size(), 3U);
  }
}

// A value's height above the axis is in proportion to it.
TEST(SvgPlot, a_value_twice_as_high_is_drawn_twice_as_high) {
  const std::string svg = svg_lines(
      {.title = "t", .x = "depth, tokens", .y = "tokens per second", .series = {{"a", {{0, 0}, {1, 50}, {2, 100}}}}});
  std::array<double, 3> y{};
  size_t at = 0;
  for (double& each : y) {
    at = svg.find("cy=\"", at) + 4;
    each = std::stod(svg.substr(at));
  }
  EXPECT_NEAR((y[0] - y[2]) / (y[0] - y[1]), 2, 0.01);
  EXPECT_THAT(svg, HasSubstr(">depth, tokens</text>"));
  EXPECT_THAT(svg, HasSubstr(">tokens per second</text>"));
}

TEST(SvgPlot, a_bar_is_as_long_as_its_value) {
  const std::string svg = svg_bars({.title = "t", .unit = "%", .bars = {{"a", 10}, {"b", -5}, {"c", 0}}});
  const auto width = [&](int which) {
    size_t at = 0;
    for (int i = 0; i <= which; ++i) at = svg.find("<rect", at) + 1;
    return std::stod(svg.substr(svg.find("width=\"", at) + 7));
  };
  EXPECT_NEAR(width(0) / width(1), 2, 0.02);
  EXPECT_EQ(width(2), 0);
}

TEST(SvgPlot, names_are_text) {
  const std::string hostile = "</text><script>alert(1)</script>\" onload=\"x";
  const std::string lines =
      svg_lines({.title = hostile, .x = hostile, .y = hostile, .series = {{hostile, {{1, 1, 0, hostile}}}}});
  const std::string bars = svg_bars({.title = hostile, .unit = hostile, .bars = {{hostile, 1}}, .legend = {hostile}});
  for (const std::string& svg : {lines, bars}) {
    EXPECT_THAT(svg, Not(HasSubstr("<script")));
    EXPECT_THAT(svg, Not(HasSubstr("\" onload")));
    EXPECT_THAT(svg, HasSubstr("&lt;script&gt;"));
  }
}

}  // namespace
}  // namespace nibble::app
