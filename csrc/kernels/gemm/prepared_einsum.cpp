// einsum of two tensors that is one matrix product, batched or not: "bhqd,bhkd->bhqk", "bits,bsi->bti".
#include <algorithm>
#include <string>
#include <utility>

#include "kernels/gemm/gemm_routes.h"

namespace staticrt {
namespace {

// A letter, or several that lie in memory like one. A stride of a tensor without it is 0.
struct Axis {
  int64_t size = 1;
  int64_t a = 0, b = 0, out = 0;
};

// Letters of one kind, merged where all three tensors allow that; outermost first.
struct Axes {
  std::vector<Axis> all;

  void append(const Axis& inner) {
    if (inner.size == 1) return;
    if (!all.empty()) {
      Axis& last = all.back();
      if (last.a == inner.a * inner.size && last.b == inner.b * inner.size &&
          last.out == inner.out * inner.size) {
        last = {last.size * inner.size, inner.a, inner.b, inner.out};
        return;
      }
    }
    all.push_back(inner);
  }
  Axis only() const { return all.empty() ? Axis{} : all[0]; }
};

// "ab,bc->ac"; an output must be named, ellipses and repeated letters are not taken.
struct Equation {
  std::string a, b, out;

  static std::optional<Equation> parse(std::string text) {
    text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
    const size_t comma = text.find(',');
    const size_t arrow = text.find("->");
    if (comma == std::string::npos || arrow == std::string::npos || comma > arrow ||
        text.find(',', comma + 1) != std::string::npos || text.find('.') != std::string::npos) {
      return std::nullopt;
    }
    Equation e{text.substr(0, comma), text.substr(comma + 1, arrow - comma - 1), text.substr(arrow + 2)};
    for (const std::string* letters : {&e.a, &e.b, &e.out}) {
      for (size_t i = 0; i < letters->size(); ++i) {
        if (letters->find((*letters)[i], i + 1) != std::string::npos) return std::nullopt;
      }
    }
    return e;
  }
};

bool has(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}

// Size and stride of a letter in one tensor; a stride of 0 where it is not there or has one element.
std::pair<int64_t, int64_t> dim_of(const TensorMeta& t, const std::string& letters, char letter) {
  const size_t at = letters.find(letter);
  if (at == std::string::npos || t.sizes[at] == 1) return {1, 0};
  return {t.sizes[at], t.strides[at]};
}

// A times B with `e`'s letters; nullopt if that is not one product with adjacent columns.
std::optional<MatmulShape> product_of(const Equation& e, const TensorOperand& a, const TensorOperand& b,
                                      const TensorOperand& out) {
  Axes batch, rows, columns, summed;
  const auto add = [&](char letter) {
    const auto [a_size, a_stride] = dim_of(a.meta, e.a, letter);
    const auto [b_size, b_stride] = dim_of(b.meta, e.b, letter);
    const auto [out_size, out_stride] = dim_of(out.meta, e.out, letter);
    const int64_t size = std::max(a_size, b_size);
    const bool in_out = has(e.out, letter);
    if ((in_out && out_size != size) || (a_size != size && a_size != 1) || (b_size != size && b_size != 1))
      return false;
    const Axis axis{size, a_stride, b_stride, out_stride};
    // A letter of size 1 in a tensor counts as absent from it.
    if (!in_out) {
      if (a_size != b_size) return false;
      summed.append(axis);
    } else if (a_size == size && b_size == size) {
      batch.append(axis);
    } else {
      (a_size == size ? rows : columns).append(axis);
    }
    return true;
  };
  for (const char letter : e.out) {
    if (!add(letter)) return std::nullopt;
  }
  for (const char letter : e.a) {
    if (!has(e.out, letter) && !add(letter)) return std::nullopt;
  }
  for (const char letter : e.b) {
    if (!has(e.out, letter) && !has(e.a, letter) && !add(letter)) return std::nullopt;
  }
  if (batch.all.size() > 2 || rows.all.size() > 1 || columns.all.size() > 1 || summed.all.size() > 1)
    return std::nullopt;
  const Axis m = rows.only(), n = columns.only(), k = summed.only();
  if (n.size > 1 && n.out != 1) return std::nullopt;
  MatmulShape s;
  s.a = a.where;
  s.b = b.where;
  s.c = out.where;
  s.m = m.size;
  s.n = n.size;
  s.k = k.size;
  s.a_row = m.a;
  s.a_col = k.a;
  s.b_k = k.b;
  s.b_n = n.b;
  s.c_row = m.out;
  s.b_fixed = b.is_fixed;
  s.b_fixed_operand = b;
  for (size_t i = 0; i < batch.all.size(); ++i) {
    const size_t slot = i + 2 - batch.all.size();
    s.batch[slot] = batch.all[i].size;
    s.a_batch[slot] = batch.all[i].a;
    s.b_batch[slot] = batch.all[i].b;
    s.c_batch[slot] = batch.all[i].out;
  }
  return s;
}

}  // namespace

// (equation, tensors, path)
SRT_PREPARE("aten::einsum", prepare_einsum) {
  if (request.args.size() < 2 || !request.args[0].value.isString() || request.args[1].tensors.size() != 2 ||
      request.outs.size() != 1)
    return std::nullopt;
  const auto equation = Equation::parse(request.args[0].value.toStringRef());
  const TensorOperand& a = request.args[1].tensors[0];
  const TensorOperand& b = request.args[1].tensors[1];
  const TensorOperand& out = request.outs[0];
  if (!equation || equation->a.size() != a.meta.sizes.size() || equation->b.size() != b.meta.sizes.size() ||
      equation->out.size() != out.meta.sizes.size() || a.meta.numel() == 0 || b.meta.numel() == 0)
    return std::nullopt;
  if (const auto shape = product_of(*equation, a, b, out)) return prepare_product(*shape, request);
  if (const auto shape = product_of({equation->b, equation->a, equation->out}, b, a, out))
    return prepare_product(*shape, request);
  return std::nullopt;
}

}  // namespace staticrt
