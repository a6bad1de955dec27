//! Words of the command line and of files for values of an enum.

/// Each variant has a word.
macro_rules! words {
    ($type:ident { $($variant:ident => $word:literal,)+ }) => {
        impl $type {
            /// Returns the word that people write.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            /// Returns the value with this word.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use words;
