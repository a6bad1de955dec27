//! Macros that declare public types: views of the engine's values, and setters of options.
//!
//! The public types are the crate's own, so that a change of the engine's changes no program.

/// Declares an enum with the variants and discriminants of an engine's enum, which it is made from.
macro_rules! mirror {
    (
        $(#[$meta:meta])*
        pub enum $name:ident of $engine:ident {
            $($(#[$doc:meta])* $variant:ident = $code:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $variant = $code,)* }

        const _: () = {
            $(assert!($name::$variant as u8 == ferroce_engine::$engine::$variant as u8);)*
        };

        impl $name {
            pub(crate) const fn of(value: ferroce_engine::$engine) -> Self {
                match value { $(ferroce_engine::$engine::$variant => Self::$variant,)* }
            }
        }
    };
}

/// Declares a struct that is made from an engine's struct: first the fields that are converted, then those
/// that are taken as they are.
macro_rules! view {
    (
        $(#[$meta:meta])*
        pub struct $name:ident of $engine:ident as $value:ident {
            $($(#[$doc:meta])* $field:ident: $type:ty = $from:expr,)*
            ..
            $($(#[$same_doc:meta])* $same:ident: $same_type:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])* pub $field: $type,)*
            $($(#[$same_doc])* pub $same: $same_type,)*
        }

        impl $name {
            pub(crate) fn of($value: &ferroce_engine::$engine) -> Self {
                Self { $($field: $from,)* $($same: $value.$same.clone(),)* }
            }
        }
    };
}

/// Adds one setter to each of these fields of an options struct. A field of type `Option` takes its value.
macro_rules! setters {
    ($name:ident { $($field:ident: $type:ty,)* }) => {
        impl $name {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, value: $type) -> Self {
                    self.$field = value.into();
                    self
                }
            )*
        }
    };
}

pub(crate) use {mirror, setters, view};
