
#include "text/grammar.h"
#include "text/json_grammar.h"
#include "base/error.h"
#include "base/random.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace nibble::text {
namespace {

using Json = nlohmann::ordered_json;

// Documents of a number alone, as nibble-tiny's tokens.
class NumberTest : public ::testing::Test {
 protected:
  Grammar of_schema(std::string_view schema) const {
    return compiler_.content({.kind = ContentRule::Kind::kJsonSchema, .schema = Json::parse(schema), .where = "test"},
                             {end_});
  }
  bool takes(const Grammar& grammar, std::string_view document) const {
    GrammarMatcher matcher = grammar.matcher();
    for (const int32_t token : tokenizer_.encode(document))
      if (!matcher.accept(token)) return false;
    return matcher.accept(end_) && matcher.finished();
  }
  bool takes_of(std::string_view schema, std::string_view document) const { return takes(of_schema(schema), document); }
  static std::string message_of(std::string_view schema) {
    try {
      static_cast<void>(json_schema_grammar(Json::parse(schema), "test"));
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  const Tokenizer tokenizer_ = Tokenizer::from_file(NIBBLE_SOURCE_DIR "/models/nibble-tiny/tokenizer.json");
  const GrammarCompiler compiler_{tokenizer_};
  const int32_t end_ = *tokenizer_.special_id("<|return|>");
};

TEST_F(NumberTest, numbers_between_bounds_are_exact) {
  // Every number with up to three digits before and one after the point, against comparing doubles.
  for (const auto& [low, high] :
       std::vector<std::pair<double, double>>{{0, 150}, {-1.5, 2.7}, {7, 7}, {-120, -9.5}, {0.1, 99.9}}) {
    const Json schema = {{"type", "number"}, {"minimum", low}, {"maximum", high}, {"multipleOf", 0.1}};
    const Grammar grammar = of_schema(schema.dump());
    for (int tenths = -1600; tenths <= 1600; tenths += 7) {
      const double value = tenths / 10.0;
      EXPECT_EQ(takes(grammar, Json(value).dump()), value >= low && value <= high) << value << " in " << schema.dump();
    }
  }
}

TEST_F(NumberTest, whole_multiples_are_exact) {
  // Every number with up to three digits before the point, against dividing.
  struct Bounds {
    std::string_view json;
    double low, high;  // both excluded
  };
  const std::vector<Bounds> all = {{"", -1e18, 1e18},
                                   {R"(,"minimum":0)", -1, 1e18},
                                   {R"(,"maximum":-5)", -1e18, -4},
                                   {R"(,"minimum":-37,"maximum":140)", -38, 141},
                                   {R"(,"exclusiveMinimum":0,"exclusiveMaximum":100)", 0, 100},
                                   {R"(,"minimum":-60.5,"maximum":-0.5)", -60.5, -0.5},
                                   {R"(,"exclusiveMinimum":-99.5,"maximum":120.25)", -99.5, 120.25}};
  for (const int step : {2, 3, 5, 7, 10, 12, 25, 60, 100, 128}) {
    for (const Bounds& bounds : all) {
      const std::string schema = fmt::format(R"({{"type":"integer","multipleOf":{}{}}})", step, bounds.json);
      const auto is_wanted = [&](int n) { return n > bounds.low && n < bounds.high && n % step == 0; };
      bool any = false;
      for (int n = -400; n <= 400; ++n) any = any || is_wanted(n);
      if (!any) {
        EXPECT_THAT(message_of(schema), testing::HasSubstr("no number")) << schema;
        continue;
      }
      const Grammar grammar = of_schema(schema);
      for (int n = -400; n <= 400; ++n)
        EXPECT_EQ(takes(grammar, fmt::format("{}", n)), is_wanted(n)) << n << " " << schema;
    }
  }
}

TEST_F(NumberTest, multiples_are_written_in_one_way) {
  const std::string_view seven = R"({"type":"integer","multipleOf":7})";
  EXPECT_TRUE(takes_of(seven, "0") && takes_of(seven, "-14"));
  for (const std::string_view odd : {"-0", "07", "7.0", "+7", "7e0", "70e1", "-", ""})
    EXPECT_FALSE(takes_of(seven, odd)) << odd;
  const int64_t most = 999'999'999'999'999'999;  // 18 digits
  for (const int64_t step : {7, 15, 60, 97, 1000, 3600}) {
    const std::string schema = fmt::format(R"({{"type":"integer","multipleOf":{}}})", step);
    const Grammar grammar = of_schema(schema);
    for (uint64_t draw = 0; draw < 20; ++draw) {
      const int64_t n =
          draw == 0 ? most / step * step : static_cast<int64_t>(philox(1, draw)[0]) * 123'456 / step * step;
      for (const int64_t value : {n, -n}) {
        EXPECT_TRUE(takes(grammar, fmt::format("{}", value))) << value << " " << step;
        EXPECT_FALSE(takes(grammar, fmt::format("{}", value - 1))) << value - 1 << " " << step;
      }
    }
    EXPECT_FALSE(takes(grammar, fmt::format("{}0", most / step * step))) << step;
  }
}

TEST_F(NumberTest, multiples_of_what_is_not_whole) {
  EXPECT_TRUE(takes_of(R"({"type":"integer","multipleOf":2.5})", "15"));
  EXPECT_FALSE(takes_of(R"({"type":"integer","multipleOf":2.5})", "12"));
  EXPECT_TRUE(takes_of(R"({"type":"integer","multipleOf":0.5})", "12"));
  EXPECT_TRUE(takes_of(R"({"type":"number","multipleOf":5,"maximum":20.5})", "-15"));
  EXPECT_FALSE(takes_of(R"({"type":"number","multipleOf":5,"maximum":20.5})", "25"));
  EXPECT_FALSE(takes_of(R"({"type":"number","multipleOf":5})", "2.5"));
  EXPECT_TRUE(takes_of(R"({"type":"number","multipleOf":0.01})", "19.99"));
  EXPECT_FALSE(takes_of(R"({"type":"number","multipleOf":0.01})", "19.999"));
  EXPECT_TRUE(takes_of(R"({"type":"integer","multipleOf":9973,"minimum":0,"maximum":100000})", "19946"));
  for (const auto& [multiple, says] : {std::pair("0", "above 0"), {"-5", "above 0"}})
    EXPECT_THAT(message_of(fmt::format(R"({{"type":"integer","multipleOf":{}}})", multiple)), testing::HasSubstr(says));
  for (const std::string_view large : {"1e10", "9973", "0.25"}) {
    const std::string schema = fmt::format(R"({{"type":"number","minimum":3,"multipleOf":{}}})", large);
    EXPECT_THAT(of_schema(schema).widened(), testing::ElementsAre("test#/multipleOf"));
    EXPECT_FALSE(takes_of(schema, "2"));
  }
}

}  // namespace
}  // namespace nibble::text
