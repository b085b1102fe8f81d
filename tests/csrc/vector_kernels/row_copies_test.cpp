// Copies of rows of floats.
#include "kernels/pointwise/row_copies.h"

#include <cstring>

#include "vector_kernels/sets.h"

using namespace staticrt;

// Every length around a vector's, in every instruction set, bit by bit.
TEST(rows_are_copied_reversed_and_transposed) {
  uint32_t bits = 0x7f800001;  // among others NaN of all kinds
  const auto any_bits = [&](int64_t count) {
    std::vector<float> x(static_cast<size_t>(count));
    for (float& v : x) std::memcpy(&v, &(bits += 0x9e3779b9), sizeof(v));
    return x;
  };
  const auto same = [](const float& a, const float& b) { return std::memcmp(&a, &b, sizeof(float)) == 0; };
  const auto at = [](const std::vector<float>& x, int64_t i) -> const float& {
    return x[static_cast<size_t>(i)];
  };
  for (const RowCopies* set : SETS_OF(row_copies)) {
    for (int64_t n = 1; n <= 70; ++n) {
      const auto x = any_bits(n);
      std::vector<float> out(x.size());
      set->reverse(out.data(), x.data(), n);
      for (int64_t i = 0; i < n; ++i) EXPECT(same(at(out, i), at(x, n - 1 - i)));
      for (const int64_t count : {1, 7, 16, 33}) {
        const auto rows = any_bits((count - 1) * (n + 2) + n);
        const auto before = any_bits((count - 1) * (n + 5) + n);
        auto copy = before;
        set->copy_rows(copy.data(), n + 5, rows.data(), n + 2, n, count);
        for (size_t i = 0; i < copy.size(); ++i) {
          const auto r = static_cast<int64_t>(i) / (n + 5), c = static_cast<int64_t>(i) % (n + 5);
          EXPECT(same(copy[i], c < n ? at(rows, r * (n + 2) + c) : before[i]));
        }
        const auto unchanged = any_bits((n - 1) * (count + 3) + count);
        auto turned = unchanged;
        set->transpose(turned.data(), count + 3, rows.data(), n + 2, count, n);
        for (size_t i = 0; i < turned.size(); ++i) {
          const auto r = static_cast<int64_t>(i) / (count + 3), c = static_cast<int64_t>(i) % (count + 3);
          EXPECT(same(turned[i], c < count ? at(rows, c * (n + 2) + r) : unchanged[i]));
        }
      }
    }
  }
}
