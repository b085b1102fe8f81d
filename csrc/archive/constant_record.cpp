#include "archive/constant_record.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

namespace staticrt {
namespace {

// Values are written to files: append only.
enum class Tag : uint8_t {
  kNone = 0,
  kBool = 1,
  kInt = 2,
  kDouble = 3,
  kComplex = 4,
  kString = 5,
  kDevice = 6,
  kTensor = 7,
  kUndefined = 8,  // an undefined tensor
  kList = 9,
};

// The element type that a list declares, which an empty list has, too. Append only.
enum class Element : uint8_t {
  kAny = 0,
  kBool = 1,
  kInt = 2,
  kDouble = 3,
  kComplex = 4,
  kString = 5,
  kTensor = 6,
  kOptionalTensor = 7,
  kNumber = 8,
};

c10::TypePtr type_of(Element element) {
  switch (element) {
    case Element::kBool:
      return c10::BoolType::get();
    case Element::kInt:
      return c10::IntType::get();
    case Element::kDouble:
      return c10::FloatType::get();
    case Element::kComplex:
      return c10::ComplexType::get();
    case Element::kString:
      return c10::StringType::get();
    case Element::kTensor:
      return c10::TensorType::get();
    case Element::kOptionalTensor:
      return c10::OptionalType::ofTensor();
    case Element::kNumber:
      return c10::NumberType::get();
    case Element::kAny:
      break;
  }
  return c10::AnyType::get();
}

Element element_of(const c10::TypePtr& type) {
  for (uint8_t i = 1; i <= static_cast<uint8_t>(Element::kNumber); ++i) {
    if (*type_of(static_cast<Element>(i)) == *type) return static_cast<Element>(i);
  }
  return Element::kAny;
}

void put_tag(ByteWriter& out, Tag tag) {
  out.put(static_cast<uint8_t>(tag));
}

bool fits(const c10::IValue& value, Element element) {
  switch (element) {
    case Element::kBool:
      return value.isBool();
    case Element::kInt:
      return value.isInt();
    case Element::kDouble:
      return value.isDouble();
    case Element::kComplex:
      return value.isComplexDouble();
    case Element::kString:
      return value.isString();
    case Element::kTensor:
      return value.isTensor();
    case Element::kOptionalTensor:
      return value.isTensor() || value.isNone();
    case Element::kNumber:
      return value.isScalar();
    case Element::kAny:
      return true;
  }
  return false;
}

}  // namespace

void write_constant(const c10::IValue& value, ByteWriter& out, TensorTable& tensors) {
  if (value.isNone()) {
    put_tag(out, Tag::kNone);
  } else if (value.isBool()) {
    put_tag(out, Tag::kBool);
    out.put(static_cast<uint8_t>(value.toBool()));
  } else if (value.isInt()) {
    put_tag(out, Tag::kInt);
    out.put(value.toInt());
  } else if (value.isDouble()) {
    put_tag(out, Tag::kDouble);
    out.put(value.toDouble());
  } else if (value.isComplexDouble()) {
    put_tag(out, Tag::kComplex);
    out.put(value.toComplexDouble().real());
    out.put(value.toComplexDouble().imag());
  } else if (value.isString()) {
    put_tag(out, Tag::kString);
    out.put_string(value.toStringRef());
  } else if (value.isDevice()) {
    put_tag(out, Tag::kDevice);
    out.put_string(value.toDevice().str());
    if (value.toDevice().has_index()) tensors.add_device(value.toDevice());
  } else if (value.isTensor()) {
    const bool defined = value.toTensor().defined();
    put_tag(out, defined ? Tag::kTensor : Tag::kUndefined);
    if (defined) out.put(tensors.add(value.toTensor()));
  } else if (value.isList()) {
    const auto list = value.toListRef();
    for (const c10::IValue& item : list) SRT_ARCHIVE(!item.isList(), "an archive cannot hold lists of lists");
    put_tag(out, Tag::kList);
    out.put(static_cast<uint8_t>(element_of(value.toList().elementType())));
    out.put_size(list.size());
    for (const c10::IValue& item : list) write_constant(item, out, tensors);
  } else {
    throw ArchiveError("an archive cannot hold a constant of type " + value.tagKind());
  }
}

namespace {

// Lists do not nest, so that no record can exhaust the stack.
c10::IValue read(ByteReader& in, LoadedTensors& tensors, bool in_list) {
  switch (static_cast<Tag>(in.get<uint8_t>())) {
    case Tag::kNone:
      return {};
    case Tag::kBool:
      return in.get_bool();
    case Tag::kInt:
      return in.get<int64_t>();
    case Tag::kDouble:
      return in.get<double>();
    case Tag::kComplex: {
      const auto real = in.get<double>();
      return c10::complex<double>(real, in.get<double>());
    }
    case Tag::kString:
      return in.get_string();
    case Tag::kDevice:
      return tensors.placement().of(in.get_string());
    case Tag::kTensor:
      return tensors.at(in.get_index(tensors.size(), "tensor"));
    case Tag::kUndefined:
      return at::Tensor();
    case Tag::kList: {
      SRT_ARCHIVE(!in_list, in.damaged(), "a list in a list");
      const auto tag = in.get<uint8_t>();
      SRT_ARCHIVE(tag <= static_cast<uint8_t>(Element::kNumber), in.damaged(), "list of type ",
                  static_cast<int>(tag));
      const auto element = static_cast<Element>(tag);
      c10::impl::GenericList list(type_of(element));
      const size_t count = in.get_count();
      for (size_t i = 0; i < count; ++i) {
        c10::IValue item = read(in, tensors, true);
        SRT_ARCHIVE(fits(item, element), in.damaged(), "a list holds a ", item.tagKind());
        list.push_back(std::move(item));
      }
      return list;
    }
  }
  throw ArchiveError(in.damaged() + "unknown constant");
}

}  // namespace

c10::IValue read_constant(ByteReader& in, LoadedTensors& tensors) {
  return read(in, tensors, false);
}

}  // namespace staticrt
