// Pictures and texts of looks into a model: sizes from small to large, and hostile tokens.

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "client/lens_picture.h"
#include "client/look_options.h"
#include "client/look_text.h"
#include "client/routes_picture.h"
#include "client/svg.h"

namespace mk::client {
namespace {

// Tags are closed in their order, text holds no markup and no control characters. Attributes are
// between double quotes.
testing::AssertionResult WellFormed(const std::string& xml) {
  std::vector<std::string> open;
  size_t at = 0;
  while (at < xml.size()) {
    if (xml[at] != '<') {
      const auto code = static_cast<unsigned char>(xml[at]);
      if (xml[at] == '>' || (code < 0x20 && code != '\n')) {
        return testing::AssertionFailure() << "raw byte " << int{code} << " at " << at;
      }
      ++at;
      continue;
    }
    bool quoted = false;
    size_t end = at + 1;
    while (end < xml.size() && (quoted || xml[end] != '>')) {
      if (xml[end] == '"') quoted = !quoted;
      if (xml[end] == '<') return testing::AssertionFailure() << "a tag in a tag at " << end;
      ++end;
    }
    const std::string tag = xml.substr(at + 1, end - at - 1);
    const std::string name =
        tag.substr(tag[0] == '/', tag.find_first_of(" /", 1) - (tag[0] == '/'));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != name) {
        return testing::AssertionFailure() << "</" << name << "> at " << at;
      }
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end + 1;
  }
  if (open.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << open.back() << " is not closed";
}

const std::vector<std::string> kHostile = {"<script>alert(1)</script>",
                                           "\"quoted\" & 'more'",
                                           "]]>",
                                           "\x01\x1b[31m",
                                           "\xff\xfe broken",
                                           "\n\t\r",
                                           " a",
                                           "",
                                           "</text></svg>",
                                           "\xE2\x80\xAE turned",
                                           "\xF0\x9F\xA6\x8A\xF0\x9F\xA6\x8A"};

LensPicture SomeLens(size_t columns, size_t layers) {
  LensPicture picture;
  picture.model = kHostile[0];
  picture.settings = kHostile[1];
  picture.left_out = 3;
  for (size_t c = 0; c < columns; ++c) {
    protocol::LensChunk chunk;
    chunk.position = c;
    chunk.id = static_cast<int32_t>(c);
    chunk.text = kHostile[c % kHostile.size()];
    chunk.next = static_cast<int32_t>(c + 1);
    chunk.next_text = kHostile[(c + 1) % kHostile.size()];
    if (c >= columns / 2) chunk.index = c - columns / 2;
    for (size_t l = 0; l < layers; ++l) {
      const double p = static_cast<double>(l + 1) / static_cast<double>(layers + 1);
      chunk.layers.push_back({static_cast<uint32_t>(l),
                              l % 4 == 3 ? "MLA" : "KDA",
                              {static_cast<int32_t>(c + 1), 2},
                              {kHostile[(c + l) % kHostile.size()], "b"},
                              {p, 1 - p},
                              7 - 6 * p,
                              0,
                              p});
    }
    picture.columns.push_back(std::move(chunk));
  }
  return picture;
}

protocol::ExpertTally SomeTally(uint32_t layers, uint32_t experts, uint32_t top_k) {
  protocol::ExpertTally tally{1000, layers, experts, top_k, {}};
  for (uint32_t layer = 1; layer < layers; ++layer) {
    protocol::ExpertCounts counts{layer, {}, {}};
    uint64_t state = layer;
    for (uint32_t expert = 0; expert < experts; ++expert) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const uint64_t count = (state >> 60) * (expert % 7 == 0 ? 9 : 2);
      if (count == 0) continue;
      counts.experts.push_back(static_cast<int32_t>(expert));
      counts.counts.push_back(count);
    }
    tally.counts.push_back(std::move(counts));
  }
  return tally;
}

TEST(Pictures, LensesOfAllSizesAreWellFormed) {
  for (const size_t columns : {1, 8, 20, 40, 41, 256}) {
    for (const size_t layers : {1, 8, 43, 93}) {
      const std::string svg = Draw(SomeLens(columns, layers));
      EXPECT_TRUE(WellFormed(svg)) << columns << " x " << layers;
      EXPECT_EQ(svg.find("<script"), std::string::npos);
      EXPECT_LT(svg.size(), 1000 * columns * (layers + 3) + 20'000);
    }
  }
  LensPicture picture = SomeLens(3, 2);
  picture.colour = LensPicture::Colour::kEntropy;
  EXPECT_NE(Draw(picture).find("entropy in nats"), std::string::npos);
}

TEST(Pictures, RoutesOfAllSizesAreWellFormed) {
  for (const auto& [layers, experts, top_k] :
       {std::tuple{2u, 1u, 1u}, {8u, 48u, 4u}, {43u, 256u, 6u}, {93u, 896u, 16u}}) {
    const std::string svg =
        Draw(RoutesPicture{kHostile[4], kHostile[0], SomeTally(layers, experts, top_k)});
    EXPECT_TRUE(WellFormed(svg)) << layers << " x " << experts;
    // A browser must open it.
    EXPECT_LT(svg.size(), size_t{6} << 20);
  }
}

TEST(Pictures, DenseCountsHaveEveryExpert) {
  const protocol::ExpertTally tally{1, 1, 4, 1, {{0, {1, 3, 9}, {5, 6, 7}}}};
  EXPECT_EQ(DenseCounts(tally, tally.counts[0]), (std::vector<uint64_t>{0, 5, 0, 6}));
}

TEST(Pictures, ShadesGoFromLightToDeep) {
  EXPECT_EQ(HexOf(Shade(-1)), HexOf(Shade(0)));
  EXPECT_EQ(HexOf(Shade(2)), HexOf(Shade(1)));
  double before = 1e9;
  for (double t = 0; t <= 1; t += 0.05) {
    const Colour shade = Shade(t);
    const double light = 0.2126 * shade.red + 0.7152 * shade.green + 0.0722 * shade.blue;
    EXPECT_LT(light, before);
    before = light;
    // What is written on it can be read: contrast of luminance.
    const bool white = InkOn(t) == "#ffffff";
    EXPECT_GT(white ? 255 - light : light - 37, 85) << t;
  }
  EXPECT_EQ(Coordinate(1.5), "1.5");
  EXPECT_EQ(Coordinate(-0.001), "0");
  EXPECT_EQ(Coordinate(300), "300");
}

TEST(LookText, TokensAreQuotedAndEscaped) {
  EXPECT_EQ(Quoted(" it's\n\\x\t\r"), "' it\\'s\\n\\\\x\\t\\r'");
  EXPECT_EQ(Quoted("\x1b[31m"), "'\\x1b[31m'");
  EXPECT_EQ(QuotedOr("", 42), "#42");
  EXPECT_EQ(PercentText(0.173), "17.3 %");
  EXPECT_EQ(PercentText(0.00999), "1.00 %");
  EXPECT_EQ(PercentText(0.00001), "<0.01 %");
  EXPECT_EQ(PercentText(0), "0.00 %");
}

TEST(LookText, LayersAreNumbersAndRanges) {
  EXPECT_EQ(ParseLayers("8-10,0,9,4").value(), (std::vector<uint32_t>{0, 4, 8, 9, 10}));
  EXPECT_EQ(ParseLayers("4095").value(), (std::vector<uint32_t>{4095}));
  for (const char* bad : {"", ",", "1,", "a", "-1", "1-", "3-2", "4096", "1 2", "1-2-3", "+1"}) {
    EXPECT_FALSE(ParseLayers(bad)) << bad;
  }
}

protocol::RoutesChunk RoutesOf(uint64_t position, int32_t expert) {
  return {position, {{1, {expert, 7, 8, 9}, {0.2, 0.1, 0.4, 0.3}}}, {}, {}};
}

// Routes of a token come before or after it, some are of the prompt, and several tokens may come at
// once.
TEST(LookText, RoutingBelongsToItsToken) {
  RoutingText text;
  const auto token = [](uint32_t index, const char* what) {
    return protocol::TokenChunk{index, 1, what, "", {}, {}};
  };
  EXPECT_EQ(text.Take(RoutesOf(10, 1)), "");
  EXPECT_EQ(text.Take(RoutesOf(11, 2)), "");
  EXPECT_EQ(text.Take(token(0, "a")), "");
  EXPECT_EQ(text.Take(RoutesOf(12, 3)), "'a'             L1: E8(0.40) E9(0.30) E3(0.20)\n");
  EXPECT_EQ(text.Take(token(1, "b")), "");
  EXPECT_EQ(text.Take(RoutesOf(13, 4)), "'b'             L1: E8(0.40) E9(0.30) E4(0.20)\n");
  EXPECT_EQ(text.Take(RoutesOf(14, 5)), "");
  EXPECT_EQ(text.Take(token(2, "c")), "'c'             L1: E8(0.40) E9(0.30) E5(0.20)\n");
  // All were used alike but the first ones: by expert.
  EXPECT_EQ(text.MostUsed(),
            "most used: L1/E7 5, L1/E8 5, L1/E9 5, L1/E1 1, L1/E2 1, L1/E3 1, L1/E4 1, L1/E5 1\n");
}

// A run that goes on without a prompt: what is read first is its first token.
TEST(LookText, RoutingWithoutAPrompt) {
  RoutingText text;
  EXPECT_EQ(text.Take(protocol::TokenChunk{0, 1, "a", "", {}, {}}), "");
  EXPECT_NE(text.Take(RoutesOf(55, 3)), "");
  EXPECT_EQ(RoutingText().MostUsed(), "");
}

}  // namespace
}  // namespace mk::client
