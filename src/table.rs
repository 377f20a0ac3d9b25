//! Columns of text: as wide as their widest cell, numbers to the right.

/// Between two columns.
const GAP: &str = "  ";

/// A table in the making.
pub struct Table {
    titles: Vec<String>,
    /// Whether a column stands to the right.
    is_right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of these columns; a title that begins with `>` puts its column to the right.
    pub fn new<'a>(titles: impl IntoIterator<Item = &'a str>) -> Self {
        let (mut names, mut is_right) = (Vec::new(), Vec::new());
        for title in titles {
            is_right.push(title.starts_with('>'));
            names.push(title.trim_start_matches('>').to_owned());
        }
        Self { titles: names, is_right, rows: Vec::new() }
    }

    /// Adds a row, one cell for each column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The lines, titles first unless all are empty.
    pub fn to_lines(&self) -> Vec<String> {
        let has_titles = self.titles.iter().any(|title| !title.is_empty());
        let all: Vec<&Vec<String>> =
            has_titles.then_some(&self.titles).into_iter().chain(&self.rows).collect();
        let width = |column: usize| {
            let cells = all.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.titles.len()).map(width).collect();
        let line = |row: &&Vec<String>| {
            let cells = row.iter().zip(&widths).zip(&self.is_right);
            let padded: Vec<String> =
                cells
                    .map(|((cell, width), is_right)| {
                        if *is_right {
                            format!("{cell:>width$}")
                        } else {
                            format!("{cell:<width$}")
                        }
                    })
                    .collect();
            padded.join(GAP).trim_end().to_owned()
        };
        all.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["NAME", ">COUNT", "NOTE"]);
        table.row(["a".to_owned(), "1,000,000".to_owned(), String::new()]);
        table.row(["longer".to_owned(), "7".to_owned(), "odd".to_owned()]);
        let expected = ["NAME        COUNT  NOTE", "a       1,000,000", "longer          7  odd"];
        assert_eq!(table.to_lines(), expected);
    }
}
