// SPDX-License-Identifier: Apache-2.0
// The maps that are known by their values: g(u) and its derivative on vectors, one functor per map.
// Errors are a few units in the last place; a NaN stays one. Formulas: docs/math.md, section 2.

// clang-format off
#if defined(FAVOR_VALUE_MAPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FAVOR_VALUE_MAPS_INL_H_
#undef FAVOR_VALUE_MAPS_INL_H_
#else
#define FAVOR_VALUE_MAPS_INL_H_
#endif
// clang-format on

#include <type_traits>

#include "favor/feature_map.h"
#include "favor/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace favor {
namespace HWY_NAMESPACE {

HWY_INLINE Vector constant(float x) {
  return hn::Set(FloatTag(), x);
}

/// e^x for x <= 88; 0 below -87.
HWY_INLINE Vector exp(Vector x) {
  const auto below = hn::Lt(x, constant(-87.0f));
  const Vector log2e = constant(0x1.715476p+0f);
  const Vector magic = constant(kRoundingShift);
  const Vector shifted = hn::Add(hn::Mul(x, log2e), magic);
  const Vector n = hn::Sub(shifted, magic);
  // log(2) in two parts, the first short enough for exact products.
  Vector f = hn::NegMulAdd(n, constant(0x1.63p-1f), x);
  f = hn::NegMulAdd(n, constant(-0x1.bd0106p-13f), f);
  return hn::IfThenZeroElse(below, exp2_from_parts(hn::Mul(f, log2e), shifted));
}

/// log(1 + y) for y in [0, 1]: 2 artanh(y / (2 + y)).
HWY_INLINE Vector log1p(Vector y) {
  const Vector s = hn::Div(y, hn::Add(y, constant(2.0f)));
  const Vector z = hn::Mul(s, s);
  Vector p = constant(0x1.1ef89ep-3f);
  p = hn::MulAdd(p, z, constant(0x1.1eb608p-3f));
  p = hn::MulAdd(p, z, constant(0x1.99d27cp-3f));
  p = hn::MulAdd(p, z, constant(0x1.5555p-2f));
  const Vector twice = hn::Add(s, s);
  return hn::MulAdd(hn::Mul(twice, z), p, twice);
}

/// sin(x + quarters pi / 2) and its derivative, for |x| up to 1e5 and quarters 0 or 1.
HWY_INLINE Vector sine(Vector x, Vector quarters, Vector& slope) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  const Vector n = hn::Round(hn::Mul(x, constant(0x1.45f306p-1f)));
  // pi / 2 in three parts, the first two short enough for exact products.
  Vector r = hn::NegMulAdd(n, constant(0x1.92p+0f), x);
  r = hn::NegMulAdd(n, constant(0x1.fb4p-12f), r);
  r = hn::NegMulAdd(n, constant(0x1.4442d2p-24f), r);
  // Far outside the range nothing is right, but all is finite.
  r = hn::IfThenZeroElse(hn::Gt(hn::Abs(r), constant(1.0f)), r);
  const Vector z = hn::Mul(r, r);
  Vector s = constant(-0x1.992c04p-13f);
  s = hn::MulAdd(s, z, constant(0x1.1106fcp-7f));
  s = hn::MulAdd(s, z, constant(-0x1.555544p-3f));
  s = hn::MulAdd(hn::Mul(s, z), r, r);
  Vector c = constant(0x1.99e338p-16f);
  c = hn::MulAdd(c, z, constant(-0x1.6c0c22p-10f));
  c = hn::MulAdd(c, z, constant(0x1.55554ap-5f));
  c = hn::MulAdd(hn::Mul(c, z), z, hn::NegMulAdd(z, constant(0.5f), constant(1.0f)));
  const auto quadrant = hn::NearestInt(hn::Add(n, quarters));
  const auto one = hn::Set(di, 1);
  const auto odd = hn::RebindMask(d, hn::Eq(hn::And(quadrant, one), one));
  // Quadrants 2 and 3 change the sign of the sine, 1 and 2 that of the cosine.
  const Vector sine_sign = hn::BitCast(d, hn::ShiftLeft<30>(hn::And(quadrant, hn::Set(di, 2))));
  const Vector cosine_sign =
      hn::BitCast(d, hn::ShiftLeft<30>(hn::And(hn::Add(quadrant, one), hn::Set(di, 2))));
  slope = hn::Xor(hn::IfThenElse(odd, s, c), cosine_sign);
  return hn::Xor(hn::IfThenElse(odd, c, s), sine_sign);
}

/// max(u, 0), NaN for NaN.
HWY_INLINE Vector relu(Vector u) {
  return hn::IfThenZeroElse(hn::Lt(u, hn::Zero(FloatTag())), u);
}

/// 1 / (1 + e^-u) and its derivative.
HWY_INLINE Vector logistic(Vector u, Vector& slope) {
  const Vector y = exp(hn::Neg(hn::Abs(u)));
  const Vector upper = hn::Div(constant(1.0f), hn::Add(constant(1.0f), y));
  const Vector lower = hn::Mul(y, upper);
  slope = hn::Mul(lower, upper);
  return hn::IfThenElse(hn::Lt(u, hn::Zero(FloatTag())), lower, upper);
}

// Each map computes g(u) and g'(u). `quarters` matters to trig alone: 0 for sines, 1 for cosines.

struct ReluMap {
  static HWY_INLINE Vector apply(Vector u, Vector /*quarters*/, Vector& slope) {
    slope = hn::IfThenElseZero(hn::Gt(u, hn::Zero(FloatTag())), constant(1.0f));
    return relu(u);
  }
};

struct Relu2Map {
  static HWY_INLINE Vector apply(Vector u, Vector /*quarters*/, Vector& slope) {
    const Vector positive = relu(u);
    slope = hn::Add(positive, positive);
    return hn::Mul(positive, positive);
  }
};

struct Elu1Map {
  static HWY_INLINE Vector apply(Vector u, Vector /*quarters*/, Vector& slope) {
    const auto above = hn::Gt(u, hn::Zero(FloatTag()));
    const Vector one = constant(1.0f);
    slope = hn::IfThenElse(above, one, exp(hn::IfThenZeroElse(above, u)));
    return hn::IfThenElse(above, hn::Add(u, one), slope);
  }
};

struct SigmoidMap {
  static HWY_INLINE Vector apply(Vector u, Vector /*quarters*/, Vector& slope) {
    return logistic(u, slope);
  }
};

struct SoftplusMap {
  static HWY_INLINE Vector apply(Vector u, Vector /*quarters*/, Vector& slope) {
    Vector unused;
    slope = logistic(u, unused);
    return hn::Add(relu(u), log1p(exp(hn::Neg(hn::Abs(u)))));
  }
};

struct GeluMap {
  static HWY_INLINE Vector apply(Vector u, Vector /*quarters*/, Vector& slope) {
    const Vector half = constant(0.5f);
    const Vector bell = exp(hn::Mul(hn::Mul(u, u), constant(-0.5f)));
    // The tail of the normal distribution beyond |u|: bell / 2 times a polynomial in
    // s = 1 / (1 + 0.4 |u| / sqrt(2)).
    const Vector s =
        hn::Div(constant(1.0f), hn::MulAdd(hn::Abs(u), constant(0x1.21a186p-2f), constant(1.0f)));
    Vector p = constant(0x1.481f06p-5f);
    p = hn::MulAdd(p, s, constant(-0x1.134912p-3f));
    p = hn::MulAdd(p, s, constant(0x1.2562b2p-4f));
    p = hn::MulAdd(p, s, constant(0x1.a30f72p-4f));
    p = hn::MulAdd(p, s, constant(0x1.1d732ep-4f));
    p = hn::MulAdd(p, s, constant(0x1.95008ap-3f));
    p = hn::MulAdd(p, s, constant(0x1.9b2356p-3f));
    p = hn::MulAdd(p, s, constant(0x1.d01698p-3f));
    p = hn::MulAdd(p, s, constant(0x1.ce1436p-3f));
    const Vector tail = hn::Mul(hn::Mul(half, bell), hn::Mul(p, s));
    const Vector below =
        hn::IfThenElse(hn::Lt(u, hn::Zero(FloatTag())), tail, hn::Sub(constant(1.0f), tail));
    slope = hn::MulAdd(hn::Mul(u, bell), constant(0x1.988454p-2f), below);
    return hn::Mul(u, below);
  }
};

struct AbsMap {
  static HWY_INLINE Vector apply(Vector u, Vector /*quarters*/, Vector& slope) {
    const auto is_zero = hn::Eq(u, hn::Zero(FloatTag()));
    slope = hn::IfThenZeroElse(is_zero, hn::CopySign(constant(1.0f), u));
    return hn::Abs(u);
  }
};

struct TanhMap {
  static HWY_INLINE Vector apply(Vector u, Vector /*quarters*/, Vector& slope) {
    const Vector one = constant(1.0f);
    const Vector size = hn::Abs(u);
    const Vector y = exp(hn::Mul(size, constant(-2.0f)));
    const Vector inverse = hn::Div(one, hn::Add(one, y));
    slope = hn::Mul(hn::Mul(constant(4.0f), y), hn::Mul(inverse, inverse));
    const Vector far = hn::CopySign(hn::Mul(hn::Sub(one, y), inverse), u);
    // Near 0 the difference cancels.
    const Vector z = hn::Mul(u, u);
    Vector p = constant(-0x1.76abf6p-8f);
    p = hn::MulAdd(p, z, constant(0x1.5256dp-6f));
    p = hn::MulAdd(p, z, constant(-0x1.b84448p-5f));
    p = hn::MulAdd(p, z, constant(0x1.110768p-3f));
    p = hn::MulAdd(p, z, constant(-0x1.555534p-2f));
    const Vector near = hn::MulAdd(hn::Mul(p, z), u, u);
    return hn::IfThenElse(hn::Lt(size, constant(0.625f)), near, far);
  }
};

struct CosMap {
  static HWY_INLINE Vector apply(Vector u, Vector /*quarters*/, Vector& slope) {
    return sine(u, constant(1.0f), slope);
  }
};

struct SinMap {
  static HWY_INLINE Vector apply(Vector u, Vector /*quarters*/, Vector& slope) {
    return sine(u, hn::Zero(FloatTag()), slope);
  }
};

struct TrigMap {
  static HWY_INLINE Vector apply(Vector u, Vector quarters, Vector& slope) {
    return sine(u, quarters, slope);
  }
};

struct IdentityMap {
  static HWY_INLINE Vector apply(Vector u, Vector /*quarters*/, Vector& slope) {
    slope = constant(1.0f);
    return u;
  }
};

/// Calls body(map) with the functor of a map that is known by its values.
template <class Body>
HWY_INLINE void with_value_map(FeatureMapKind kind, const Body& body) {
  switch (kind) {
    case FeatureMapKind::kRelu:
      return body(ReluMap());
    case FeatureMapKind::kRelu2:
      return body(Relu2Map());
    case FeatureMapKind::kElu1:
      return body(Elu1Map());
    case FeatureMapKind::kSigmoid:
      return body(SigmoidMap());
    case FeatureMapKind::kSoftplus:
      return body(SoftplusMap());
    case FeatureMapKind::kGelu:
      return body(GeluMap());
    case FeatureMapKind::kAbs:
      return body(AbsMap());
    case FeatureMapKind::kTanh:
      return body(TanhMap());
    case FeatureMapKind::kCos:
      return body(CosMap());
    case FeatureMapKind::kSin:
      return body(SinMap());
    case FeatureMapKind::kTrig:
      return body(TrigMap());
    default:
      return body(IdentityMap());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace favor
HWY_AFTER_NAMESPACE();

#endif  // FAVOR_VALUE_MAPS_INL_H_
