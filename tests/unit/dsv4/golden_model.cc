#include "tests/unit/dsv4/golden_model.h"

#include <fstream>
#include <iterator>

#include "engine/format/digest.h"
#include "tests/reference/random_dsv4.h"

namespace mk::test {

GoldenModel::GoldenModel(const std::string& name) : golden_(LoadGolden("dsv4", name)) {
  reference::WriteRandomDsv4(path(), golden_.config, golden_.seed);
  std::ifstream in(path(), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  Sha256Digest digest;
  digest.Update(std::as_bytes(std::span(bytes)));
  EXPECT_EQ(digest.FinishHex(), golden_.model_sha256);
}

}  // namespace mk::test
